"""Predicts training: the time of an iteration, or the throughput per device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kernbench.accuracy.rows import Answer, Row, of_layers
from kernbench.dtypes import as_dtype
from kernbench.hardware import changed_machine
from kernbench.plans import (
    MachineOf,
    Microbatch,
    Model,
    StageWires,
    Steps,
    one_forward_one_backward_us,
)
from kernbench.tp import TransformerConfig
from validation.sources.stacks import TrainingRun, stack_of

DTYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}

_NEEDED = ("hidden", "layers", "seq", "batch", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How an iteration is spread over devices."""

    stages: int
    copies: int
    microbatches: int
    pieces: int


class TrainingPredictor:
    """Predicts iterations (``train_iteration``) and throughput (``train_throughput``)."""

    def __init__(self, machine_of: MachineOf) -> None:
        self._machine_of = machine_of
        self._steps = lru_cache(maxsize=64)(self._make_steps)
        self._wires = StageWires(machine_of)

    def predict(self, row: Row) -> Answer:
        """Return the time of the row's iteration, or of the unit that its rate counts."""
        if row.dtype not in DTYPES:
            return Answer(None, f"no dtype of a model for {row.dtype}")
        missing = [name for name in _NEEDED if row.optional(name) is None]
        if missing:
            return Answer(None, f"the source does not say the model's {missing[0]}")
        run = stack_of(row.source).run_of(row.integer("hidden"))
        if run is None:
            return Answer(None, "the source does not say how large its microbatches are")
        if run.heads is None and row.optional("heads") is None:
            return Answer(None, "the source does not say the model's heads")
        if row.per not in ("", "TFLOP"):
            return Answer(None, f"training rows of a time or TFLOP/s, not per {row.per}")
        per = self._tflop_per_device(row, run) if row.per else 1.0
        return of_layers(lambda: self._iteration_us(row, run) / per, "a step run on the machine")

    def _iteration_us(self, row: Row, run: TrainingRun) -> float:
        stack, layers = stack_of(row.source), row.integer("layers")
        plan = _plan(row, run)
        model = self._model(row, run)
        sequences = row.integer("batch") // plan.copies // plan.microbatches
        asked = Microbatch(sequences=sequences, tokens=row.integer("seq"))
        step = self._steps(row.device, row.integer("tp"), row.source).time(model, asked)
        send_us = 0.0
        itemsize = as_dtype(DTYPES[row.dtype]).itemsize
        if plan.stages > 1:
            elements = sequences * row.integer("seq") * row.integer("hidden")
            send_us = self._wires.handed_on_us(row.device, row.integer("tp"), elements, itemsize)
        through_us = one_forward_one_backward_us(
            plan.stages,
            plan.microbatches,
            step.forward_us * layers / plan.stages,
            step.backward_us * layers / plan.stages,
            send_us,
            chunks=plan.pieces,
            ends_us=(step.ends_forward_us, step.ends_backward_us),
            waits_for_sends=stack.waits_for_sends,
        )
        elements = round(step.layer_elements * layers / plan.stages) + step.ends_elements
        summed_us = self._wires.summed_us(
            row.device, row.integer("tp"), plan.copies, elements, itemsize
        )
        if stack.overlapped_gradients:
            # Parts of the sum overlap the last backward, and gathers the next forward.
            summed_us = sum(
                max(summed_us / 2 - number * layers / plan.stages, 0.0)
                for number in (step.backward_us, step.forward_us)
            )
        update_us = step.update_us * elements / step.layer_elements
        if stack.sharded_optimizer:
            update_us /= plan.copies
        return through_us + summed_us + update_us

    def _tflop_per_device(self, row: Row, run: TrainingRun) -> float:
        """Return the work of an iteration as such sources count it, in 1e12 operations per device.

        Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters",
        2021, equation 3: four passes where activations are recomputed, three elsewhere.
        """
        hidden, layers = row.integer("hidden"), row.integer("layers")
        batch, seq = row.integer("batch"), row.integer("seq")
        passes = 4 if stack_of(row.source).recompute else 3
        blocks = 24 * passes * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden))
        # Logits are not recomputed.
        logits = 6 * batch * seq * hidden * run.vocabulary
        plan = _plan(row, run)
        return (blocks + logits) / (row.integer("tp") * plan.stages * plan.copies) / 1e12

    def _model(self, row: Row, run: TrainingRun) -> Model:
        hidden = row.integer("hidden")
        config = TransformerConfig(
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_heads=run.heads or row.integer("heads"),
            vocab_size=run.vocabulary,
            num_layers=row.integer("layers"),
            tp_size=row.integer("tp"),
            dtype=DTYPES[row.dtype],
            gated=False,
            bias=True,
            tied_embeddings=True,
            sequence_parallel=stack_of(row.source).sequence_parallel and row.integer("tp") > 1,
        )
        return Model(config=config)

    def _make_steps(self, device: str, ranks: int, source: str) -> Steps:
        stack = stack_of(source)
        machine = changed_machine(self._machine_of(device), {}, num_sips=ranks)
        return Steps(
            stack.adapted(machine, ranks), keep_scores=stack.keep_scores, recompute=stack.recompute
        )


def _plan(row: Row, run: TrainingRun) -> _Layout:
    stages, copies = row.optional("pp") or 1, row.optional("dp") or 1
    own = max(row.integer("batch") // copies, 1)
    microbatches = own // min(run.microbatch or own, own)
    layers = -(-row.integer("layers") // stages)
    pieces = layers // run.piece if run.piece and stages > 1 else 1
    return _Layout(stages=stages, copies=copies, microbatches=microbatches, pieces=pieces)
