"""The time of a step in a layout: layers run on the machine, collectives on its links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kernbench import ops, tp
from kernbench.hardware import Machine, changed_machine
from kernbench.links import Asked
from kernbench.op_log import average_watts
from kernbench.plans.layouts import Job, Layout, config_of, weights_per_rank
from kernbench.plans.models import ModelShape
from kernbench.plans.passes import Microbatch, Model, Pass, Passes, PassTime, Steps, StepTime
from kernbench.plans.pipelines import (
    StageWires,
    collective_cost,
    forward_us,
    node_of,
    one_forward_one_backward_us,
    single_sips,
)
from kernbench.report import cost_usd
from kernbench.runtime_api import RuntimeContext
from kernbench.tp import sharding

HOST = "host and overlap"
"""What a program's step takes beside its parts alone: less, where they overlap."""
_S = 1e-6
_ITEM = 2
_GRADIENT = 4


@dataclass(frozen=True, kw_only=True)
class TimedLayout:
    """A layout with its modeled time."""

    layout: Layout
    memory: Mapping[str, float]
    """Bytes of the fullest rank, by kind."""
    parts: Mapping[str, float]
    """Seconds by what takes them; they add up to ``seconds``."""
    seconds: float
    tokens: int
    """Tokens that the step trains on, or makes."""
    flops: float
    """Operations of the model's products, on all devices."""
    collectives: int
    """Calls of a rank in a step."""
    collective_bytes: float
    """Bytes of their messages."""
    more: Mapping[str, float]
    """Other figures, in seconds: of a server, those of its first and its further tokens."""
    joules: float | None
    """The energy that all devices take; None where the machine does not say."""
    usd: float | None
    """The money that all devices cost meanwhile, likewise."""
    is_run: bool = False
    """Whether the time is that of a program that was run, rather than of its parts alone."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def total_bytes(self) -> float:
        return sum(self.memory.values())

    def as_run(self, seconds: float, peak_bytes: float, machine: Machine) -> TimedLayout:
        """Return the layout with the step time and the peak of memory of its program, in a run.

        Devices idle in the time that the parts alone do not take.
        """
        more = seconds - self.seconds
        power, num_sips = machine.sip.power, machine.num_sips
        joules = self.joules
        if joules is not None and power is not None:
            joules += max(more, 0.0) * float(power.idle_w) * num_sips
        return replace(
            self,
            seconds=seconds,
            parts={**self.parts, HOST: more},
            memory={"peak": peak_bytes},
            joules=joules,
            usd=None if self.usd is None else self.usd * seconds / self.seconds,
            is_run=True,
        )


_Alone = tuple[float, float, float | None]
"""Microseconds forward and backward, and watts above idle."""


@dataclass(frozen=True, slots=True)
class _GradientSums:
    """What summing gradients and gathering weights takes of a rank."""

    time_us: float
    calls: int
    sent_bytes: float
    watts: float


class PlanTimes:
    """Times layouts of one model and job on one machine; equal parts are run once."""

    def __init__(self, model: ModelShape, job: Job, machine: Machine) -> None:
        self.model, self.job, self.machine = model, job, machine
        self._wires = StageWires(lambda _, num_sips=1: machine)
        self._node = node_of(machine)
        self._layer = lru_cache(None)(self._run_layer)
        self._pass = lru_cache(None)(self._run_pass)
        self._attention = lru_cache(None)(self._run_attention)
        self._experts = lru_cache(None)(self._run_experts)
        self._collective_cost = lru_cache(None)(self._run_collective)
        self._shares = lru_cache(None)(self._share_of_collectives)
        # Equal products of layers are tuned once.
        self._runs = lru_cache(None)(lambda size: Passes(self._of(size)))
        self._steps = lru_cache(None)(lambda size: Steps(self._of(size)))

    def time(self, layout: Layout, memory: Mapping[str, float]) -> TimedLayout:
        """Return a layout's time.

        Raises:
            KernbenchError: The machine cannot run its layers or collectives.
        """
        return self._trained(layout, memory) if self.job.trains else self._served(layout, memory)

    def _trained(self, layout: Layout, memory: Mapping[str, float]) -> TimedLayout:
        model, job = self.model, self.job
        tokens = job.seq // layout.cp
        step = self._layer(layout.tp, layout.sequence_parallel, layout.microbatch, tokens)
        ring = self._ring_us(layout, tokens)
        experts = self._experts_us(layout, layout.microbatch * tokens, 3)
        layers = model.layers / layout.pp
        forward = (step.forward_us + ring[0] + experts[0]) * layers
        again = forward if layout.recompute else 0.0
        backward = (step.backward_us + ring[1] + experts[1]) * layers + again
        send_us = 0.0
        if layout.pp > 1:
            elements = layout.microbatch * tokens * model.hidden
            send_us = self._wires.handed_on_us("", layout.tp, elements, _ITEM)
        ends = (step.ends_forward_us, step.ends_backward_us)
        through = one_forward_one_backward_us(
            layout.pp, layout.microbatches, forward, backward, send_us, ends_us=ends
        )
        busy = layout.microbatches * (forward + backward)
        sums = self._sums_us(layout, forward)
        dense, routed = weights_per_rank(model, layout)
        own = dense / (layout.shards or layout.copies) + routed * layout.ep / layout.copies
        own = dense if layout.shard == "ddp" else own
        update = step.update_us * own / step.layer_elements
        uses = self._shares(layout.tp, layout.sequence_parallel, layout.microbatch * tokens)
        talk = layout.microbatches * layers * uses[0]
        most = layout.microbatches * layers
        again_us = layout.microbatches * again
        parts = {
            "layers": most * (step.forward_us + step.backward_us) - talk,
            "TP collectives": talk,
            "recomputation": again_us,
            "CP attention": most * sum(ring),
            "experts": most * sum(experts),
            "ends": layout.microbatches * sum(ends) / layout.pp,
        }
        parts["pipeline"] = through - busy - parts["ends"]
        parts["gradients"] = sums.time_us
        parts["update"] = update
        watts = {
            "CP attention": self._ring_watts(layout, tokens),
            "experts": self._experts_watts(layout, layout.microbatch * tokens, 3),
            "pipeline": 0.0,
            "gradients": sums.watts,
            "update": step.update_watts,
        }
        drawn = {name: (us, watts.get(name, step.watts)) for name, us in parts.items()}
        seconds = (through + sums.time_us + update) * _S
        sent = 2 * (layout.pp > 1) * layout.microbatches
        moved = 4 * most * (layout.ep > 1)
        moved_bytes = _ITEM * layout.microbatch * tokens * model.top_k * model.hidden / layout.tp
        return TimedLayout(
            layout=layout,
            memory=memory,
            parts={name: part * _S for name, part in parts.items() if abs(part) > 1e-9},
            seconds=seconds,
            tokens=job.batch * job.seq,
            flops=3 * self._forward_flops(job.batch * job.seq, job.seq / 2),
            collectives=round(most * uses[1] + moved) + sent + sums.calls,
            collective_bytes=most * uses[2]
            + sent * _ITEM * layout.microbatch * tokens * model.hidden / layout.tp
            + moved * moved_bytes
            + sums.sent_bytes,
            more={},
            joules=self._joules(drawn),
            usd=self._usd(seconds),
        )

    def _served(self, layout: Layout, memory: Mapping[str, float]) -> TimedLayout:
        model, job = self.model, self.job
        prefill, prefill_parts, prefill_j = self._through(layout, job.seq, 0)
        decode, decode_parts, decode_j = self._through(layout, 1, job.seq + job.new_tokens // 2)
        further = max(job.new_tokens - 1, 0)
        joules = None if prefill_j is None or decode_j is None else prefill_j + further * decode_j
        seconds = (prefill + further * decode) * _S
        parts = {f"prefill: {name}": item * _S for name, item in prefill_parts.items()}
        parts |= {f"decode: {name}": further * it * _S for name, it in decode_parts.items()}
        uses = self._shares(layout.tp, False, layout.microbatch, training=False)
        layers = model.layers / layout.pp
        passes = layout.microbatches * layers
        tokens = job.batch * (job.seq + job.new_tokens)
        length = (job.seq + job.new_tokens) / 2
        return TimedLayout(
            layout=layout,
            memory=memory,
            parts={name: part for name, part in parts.items() if abs(part) > 1e-12},
            seconds=seconds,
            tokens=job.batch * job.new_tokens,
            flops=self._forward_flops(tokens, length),
            collectives=round(passes * (1 + further) * uses[1]),
            collective_bytes=passes * (job.seq + further) * uses[2],
            more={"first token": prefill * _S, "each further": decode * _S},
            joules=joules,
            usd=self._usd(seconds),
        )

    def _through(
        self, layout: Layout, tokens: int, past: int
    ) -> tuple[float, dict[str, float], float | None]:
        """Return the time of all sequences through all stages, its parts, and the joules."""
        took = self._pass(layout.tp, layout.microbatch, tokens, past)
        experts = self._experts_us(layout, layout.microbatch * tokens, 1)[0]
        layers = self.model.layers / layout.pp
        send_us = 0.0
        if layout.pp > 1:
            elements = layout.microbatch * tokens * self.model.hidden
            send_us = self._wires.handed_on_us("", layout.tp, elements, _ITEM)
        stage = (took.layer_us + experts) * layers
        total = forward_us(layout.pp, layout.microbatches, stage, send_us)
        if past:
            # Each part begins its next token as soon as it has one: stages stay busy.
            alone_us = forward_us(layout.pp, 1, stage, send_us)
            total = max(alone_us, layout.microbatches * stage)
        busy = layout.microbatches * layers
        parts = {
            "layers": busy * took.layer_us,
            "experts": busy * experts,
            "ends": took.rest_us,
            "pipeline": total - layout.microbatches * stage,
        }
        watts = {
            "experts": self._experts_watts(layout, layout.microbatch * tokens, 1),
            "pipeline": 0.0,
        }
        drawn = {name: (us, watts.get(name, took.watts)) for name, us in parts.items()}
        return total + took.rest_us, parts, self._joules(drawn)

    def _joules(self, parts: Mapping[str, tuple[float, float | None]]) -> float | None:
        """Return what all devices take, from times and watts above idle of what they do in turn."""
        power = self.machine.sip.power
        if power is None:
            return None
        drawn = sum(us * (float(power.idle_w) + (watts or 0.0)) for us, watts in parts.values())
        return drawn * _S * self.job.devices

    def _usd(self, seconds: float) -> float | None:
        price = self.machine.spec.usd_per_device_hour
        return None if price is None else cost_usd(float(price), self.job.devices, seconds * 1e9)

    def _forward_flops(self, tokens: int, keys: float) -> float:
        model = self.model
        attention = 4 * model.heads * model.head_dim * keys * model.layers
        return tokens * (2 * model.active_parameters + attention)

    def _ring_us(self, layout: Layout, tokens: int) -> tuple[float, float]:
        """Return what ring attention adds to a layer: a block of other keys for each other rank.

        Ranks have an early and a late part of the sequence, so that each block costs as much as
        their own causal one; keys and values of the next travel meanwhile.
        """
        if layout.cp == 1:
            return 0.0, 0.0
        forward, backward, _ = self._attention(layout.tp, layout.microbatch, tokens)
        config = config_of(self.model, layout.tp, False)
        elements = layout.microbatch * tokens * 2 * config.local_kv_size
        send = self._collective("send_recv", 2, layout.tp, elements, _ITEM)
        others = layout.cp - 1
        # Gradients of keys and values travel, too.
        return others * max(forward, send), others * max(backward, 2 * send)

    def _experts_us(self, layout: Layout, tokens: int, passes: int) -> tuple[float, float]:
        """Return the time of routed experts, forward and backward, with their exchanges.

        All experts get equally many tokens. Forward is two products, backward four.
        """
        model = self.model
        if not model.experts:
            return 0.0, 0.0
        rows = max(1, -(-tokens * model.top_k * layout.ep // model.experts))
        local = model.experts // layout.ep
        forward, backward, _ = self._experts(layout.tp, local, rows, passes > 1)
        if layout.ep > 1:
            elements = tokens * model.top_k * model.hidden // layout.tp
            elements += -elements % layout.ep
            stride = layout.tp * layout.cp
            exchange = self._collective("all_to_all", layout.ep, stride, elements, _ITEM)
            forward, backward = forward + 2 * exchange, backward + 2 * exchange
        return forward, backward if passes > 1 else 0.0

    def _ring_watts(self, layout: Layout, tokens: int) -> float | None:
        if layout.cp == 1:
            return 0.0
        return self._attention(layout.tp, layout.microbatch, tokens)[2]

    def _experts_watts(self, layout: Layout, tokens: int, passes: int) -> float | None:
        model = self.model
        if not model.experts:
            return 0.0
        rows = max(1, -(-tokens * model.top_k * layout.ep // model.experts))
        return self._experts(layout.tp, model.experts // layout.ep, rows, passes > 1)[2]

    def _sums_us(self, layout: Layout, pass_us: float) -> _GradientSums:
        """Return what summing gradients and gathering weights takes beside passes of a stage.

        Whole weights are gathered at the step's end (ZeRO-1). Otherwise those of a layer are
        gathered while the one before runs: what shows is the first, and what takes longer than a
        pass. ZeRO-3 does so forward and backward, and sums, for each micro-batch.
        """
        dense, routed = weights_per_rank(self.model, layout)
        shards = layout.shards or layout.copies
        again = layout.microbatches if layout.gathers_again else 1
        hidden = layout.gathers_again or layout.shard == "zero2"
        first = layout.pp / self.model.layers
        total, calls, sent, drawn = 0.0, 0, 0.0, 0.0

        def add(op: str, elements: float, copies: int, stride: int, item: int, times: int) -> None:
            nonlocal total, calls, sent, drawn
            if copies == 1 or not elements:
                return
            part = -(-int(elements) // copies) * copies
            took_us, watts = self._collective_cost(op, copies, stride, part, item)
            shown = max(first * took_us, took_us - pass_us) if hidden else took_us
            total += times * shown
            drawn += times * shown * (watts or 0.0)
            calls += times
            sent += times * part * item

        groups = (
            (dense, shards, layout.tp),
            (routed, layout.copies // layout.ep, layout.tp * layout.ep),
        )
        gathers = 2 * again if layout.gathers_again else 1
        for elements, copies, stride in groups:
            add("reduce_scatter", elements, copies, stride, _GRADIENT, again)
            add("all_gather", elements, copies, stride, _ITEM, gathers)
        beside = layout.copies // shards
        add("all_reduce", dense / shards, beside, layout.tp * shards, _GRADIENT, again)
        return _GradientSums(total, calls, sent, drawn / total if total else 0.0)

    def _collective(self, op: str, ranks: int, stride: int, elements: int, item: int) -> float:
        return self._collective_cost(op, ranks, stride, elements, item)[0]

    def _run_layer(self, size: int, parallel: bool, sequences: int, tokens: int) -> StepTime:
        asked = Microbatch(sequences=sequences, tokens=tokens)
        return self._steps(size).time(self._layers(size, parallel), asked)

    def _run_pass(self, size: int, batch: int, tokens: int, past: int) -> PassTime:
        asked = Pass(batch=batch, tokens=tokens, past=past, head=past > 0)
        return self._runs(size).time(self._layers(size, False), asked)

    def _layers(self, size: int, parallel: bool) -> Model:
        config = config_of(self.model, size, parallel)
        return Model(config=config, norm="rms" if self.model.rms_norm else "layer")

    def _of(self, size: int) -> Machine:
        return changed_machine(self.machine, {}, num_sips=max(size, 1))

    def _run_attention(self, size: int, sequences: int, tokens: int) -> _Alone:
        config = config_of(self.model, size, False)
        heads = tp.TransformerLayer.heads(config)

        def program(torch: RuntimeContext) -> Any:
            attention = tp.TrainingAttention(heads, sequences, causal=True, keep_scores=False)
            fused = torch.empty((sequences * tokens, config.local_qkv_size), dtype=config.dtype)
            out = attention.forward(fused, None)
            middle = torch.ahbm.current_stream().record_event()
            attention.backward(out)
            return middle

        return self._alone(program)

    def _run_experts(self, size: int, local: int, rows: int, trains: bool) -> _Alone:
        model = self.model
        inner = max(1, model.expert_intermediate // size)

        def program(torch: RuntimeContext) -> Any:
            def empty(*shape: int) -> Any:
                return torch.empty((local, *shape), dtype="bf16")

            def multiply(m: int, n: int, k: int) -> None:
                ops.matmul(empty(m, k), empty(k, n))

            multiply(rows, 2 * inner, model.hidden)
            multiply(rows, model.hidden, inner)
            middle = torch.ahbm.current_stream().record_event()
            if trains:
                for columns, depth in ((model.hidden, 2 * inner), (inner, model.hidden)):
                    multiply(rows, columns, depth)
                    multiply(columns, depth, rows)
            return middle

        return self._alone(program)

    def _alone(self, program: Callable[[RuntimeContext], Any]) -> _Alone:
        """Return the times of a program's two parts on one device, and what it draws."""
        numbers: list[tuple[float, float]] = []

        def rank(_: int, torch: RuntimeContext) -> None:
            torch.ahbm.synchronize()
            begin = torch.ahbm.current_stream().record_event()
            middle = program(torch)
            end = torch.ahbm.current_stream().record_event()
            torch.ahbm.synchronize()
            numbers.append((begin.elapsed_time(middle) * 1e3, middle.elapsed_time(end) * 1e3))

        log = self._steps(1).run(1, rank).op_log
        forward, backward = numbers[0]
        begin_ps = log.end_ps - round((forward + backward) * 1e6)
        return forward, backward, average_watts(log, self._of(1), 1, begin_ps, log.end_ps)

    def _run_collective(
        self, op: str, ranks: int, stride: int, elements: int, item: int
    ) -> tuple[float, float | None]:
        """Return time and watts of a collective of every ``stride``-th device, on idle links.

        Groups beside it have their own links to the network, as the links of a node are counted.
        """
        node = self._node
        if node and stride % node == 0:
            machine = single_sips(self.machine, ranks)
            return collective_cost(machine, Asked(op, ranks, elements, item), tuple(range(ranks)))
        room = ranks * stride
        room += -room % node if node else 0
        machine = changed_machine(self.machine, {}, num_sips=max(room, 1))
        sips = tuple(range(0, ranks * stride, stride))
        return collective_cost(machine, Asked(op, ranks, elements, item), sips)

    def _share_of_collectives(
        self, size: int, parallel: bool, tokens: int, training: bool = True
    ) -> tuple[float, float, float]:
        """Return the time, the calls and the bytes of a layer's TP collectives, each alone."""
        config = config_of(self.model, size, parallel)
        uses = sharding.collectives_per_step(config, tokens, training=training)
        inside = [use for use in uses if use.count >= config.num_layers]
        timed = sharding.time_collectives(inside, self._of(size))
        layers = config.num_layers
        return (
            sum(timed_collective.step_ns for timed_collective in timed) / 1e3 / layers,
            sum(collective_use.count for collective_use in inside) / layers,
            sum(collective_use.step_bytes for collective_use in inside) / layers,
        )
