"""The time of a rank's pass through a transformer, from a few layers run on the machine.

Layers repeat, so a pass through many is the time of a few plus the time per layer for each further
one. The layers are run by a program like a user's, with ranks, launches, products with tuned tiles
and collectives; only its tensors have no data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from kernbench import ops, tp
from kernbench.dtypes import DType
from kernbench.hardware import Machine, SipSpec
from kernbench.op_log import average_watts
from kernbench.ops import GemmTile
from kernbench.plans.tiles import GemmTuner, Problem
from kernbench.runtime_api import KernelEngine, RuntimeContext
from kernbench.tp import TransformerConfig

LAYERS = 3
"""How many layers are run: the first finds an idle device, the last two show the steady pace."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A transformer: a :class:`TransformerConfig` with what it does not say."""

    config: TransformerConfig
    norm: tp.NormName = "layer"
    post_norm: bool = False
    causal: bool = True
    rotary: bool = False


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The tokens of one pass through the layers.

    Attributes:
        batch: Sequences.
        tokens: New tokens of each.
        past: Tokens of each that a cache holds already.
        packed: Real tokens of all sequences, where padding is removed; None without padding.
        head: Whether logits of the last tokens follow.
    """

    batch: int
    tokens: int
    past: int = 0
    packed: int | None = None
    head: bool = False


@dataclass(frozen=True, slots=True)
class PassTime:
    """The time of a pass: per layer, and the rest."""

    layer_us: float
    rest_us: float
    watts: float | None = None
    """What a device draws above idle meanwhile; None where the machine does not say."""

    def total_us(self, layers: int) -> float:
        """Return the time of a pass through this many layers."""
        return self.rest_us + layers * self.layer_us


class TunedTiles:
    """The fastest tile of each product, as for measured GEMM rows."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._tuner = GemmTuner()
        self._tile = lru_cache(maxsize=4096)(self._tuned)

    def __call__(self, m: int, n: int, k: int, dtype: DType, sip: SipSpec) -> GemmTile:
        """Return the tile for a product; all SIPs are equal."""
        return self._tile(m, n, k, dtype)

    def _tuned(self, m: int, n: int, k: int, dtype: DType) -> GemmTile:
        return self._tuner.tune(Problem(m, n, k, dtype), self._machine).tile


class ModelRuns:
    """Runs tensor-parallel programs without data, on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._engine = KernelEngine(machine)
        self._tiles = TunedTiles(machine)

    def run(self, num_ranks: int, program: Callable[[int, RuntimeContext], None]) -> RuntimeContext:
        """Run a program on ranks that are a model-parallel group, and return its run."""
        with RuntimeContext(
            self.machine, num_ranks, data=False, kernel_engine=self._engine
        ) as torch:

            def rank_program(rank: int) -> None:
                torch.ahbm.set_device(rank)
                torch.distributed.init_process_group(blocking_wait=False)
                tp.initialize_model_parallel(num_ranks)
                ops.use_tiles(self._tiles)
                program(rank, torch)

            torch.multiprocessing.spawn(rank_program, nprocs=num_ranks)
        return torch


class Passes(ModelRuns):
    """Times passes. Results are cached.

    ``keep_scores`` says that attention over many tokens stores the matrix of scores;
    ``decode_splits`` programs share the keys of a decoded token, chosen by size when None.
    """

    def __init__(
        self, machine: Machine, *, keep_scores: bool = False, decode_splits: int | None = None
    ) -> None:
        super().__init__(machine)
        self._keep_scores = keep_scores
        self._decode_splits = decode_splits
        self.time = lru_cache(maxsize=4096)(self._time)

    def _time(self, model: Model, asked: Pass) -> PassTime:
        """Return the time of a pass from an idle device to its end on all ranks."""
        marks: list[float] = []
        program = partial(self._rank, model=model, asked=asked, marks=marks)
        run = self.run(model.config.tp_size, program)
        layer_us = marks[LAYERS] - marks[LAYERS - 1]
        end_ps = run.op_log.end_ps
        begin_ps = end_ps - round(marks[-1] * 1e6)
        watts = average_watts(run.op_log, self.machine, model.config.tp_size, begin_ps, end_ps)
        return PassTime(layer_us, marks[-1] - LAYERS * layer_us, watts)

    def _rank(
        self, rank: int, torch: RuntimeContext, model: Model, asked: Pass, marks: list[float]
    ) -> None:
        config = model.config
        # Each has its own weights and KV cache, so that the device's cache is used as in a model.
        layers = [
            tp.TransformerLayer(
                config,
                self._attention(torch, model, asked),
                norm=model.norm,
                post_norm=model.post_norm,
            )
            for _ in range(LAYERS)
        ]
        rows = asked.packed or asked.batch * asked.tokens
        table = torch.empty((config.vocab_size, config.hidden_size), dtype=config.dtype)
        ids = torch.empty((rows,), dtype="int32")
        head = _Head(torch, model, asked) if asked.head else None
        torch.ahbm.synchronize()

        begin = torch.ahbm.Event()
        begin.record()
        x = ops.embedding(table, ids)
        events = [torch.ahbm.current_stream().record_event()]
        for layer in layers:
            x = layer(x)
            events.append(torch.ahbm.current_stream().record_event())
        if head is not None:
            head.run(x)
            events.append(torch.ahbm.current_stream().record_event())
        torch.ahbm.synchronize()
        if rank == 0:
            marks += [begin.elapsed_time(event) * 1e3 for event in events]

    def _attention(self, torch: RuntimeContext, model: Model, asked: Pass) -> tp.Attention:
        config = model.config
        heads = tp.TransformerLayer.heads(config)
        if asked.packed is not None:
            return tp.PackedAttention(
                torch.empty((asked.packed,), dtype="int32"),
                torch.empty((asked.batch,), dtype="int32"),
                asked.tokens, heads, asked.batch, causal=model.causal,
            )  # fmt: skip
        end = asked.past + asked.tokens
        room = (asked.batch, heads.num_key_heads, end, heads.size)
        rotary: Any = None
        if model.rotary:
            table = (end, heads.size // 2)
            rotary = (torch.empty(table), torch.empty(table))
        attention = tp.CachedAttention(
            torch.empty(room, dtype=config.dtype), torch.empty(room, dtype=config.dtype),
            heads, asked.batch, causal=model.causal, keep_scores=self._keep_scores,
            rotary=rotary, num_splits=self._decode_splits if asked.tokens == 1 else None,
        )  # fmt: skip
        attention.position = asked.past
        return attention


class _Head:
    """The logits of each sequence's last token: norm, product over the vocabulary, gather."""

    def __init__(self, torch: RuntimeContext, model: Model, asked: Pass) -> None:
        config = model.config
        self._asked = asked
        self._weight = torch.empty((config.hidden_size,), dtype=config.dtype)
        self._output = tp.ColumnParallelLinear(
            config.hidden_size, config.vocab_size, dtype=config.dtype, torch=torch
        )

    def run(self, x: Any) -> Any:
        asked = self._asked
        last = x.view(asked.batch, asked.tokens, x.shape[-1])[:, -1]
        logits = self._output(ops.layer_norm(last, self._weight, self._weight))
        return tp.gather_from_tensor_model_parallel_region(logits.to("float32"))


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Sequences that go forward and backward together, and the tokens of each."""

    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The times of a microbatch and an update on one rank, in microseconds.

    Attributes:
        forward_us: Of a layer.
        backward_us: Of a layer, with its second forward where activations are not kept.
        ends_forward_us: Embedding, last norm, logits and loss.
        ends_backward_us: Their gradients.
        update_us: The optimizer's step for a layer.
        layer_elements: Parameters of a layer on this rank.
        ends_elements: Parameters of the embedding, and of the output where it has its own.
        watts: What a device draws above idle until the update; None where nothing says.
        update_watts: The same of the update.
    """

    forward_us: float
    backward_us: float
    ends_forward_us: float
    ends_backward_us: float
    update_us: float
    layer_elements: int
    ends_elements: int
    watts: float | None = None
    update_watts: float | None = None


class Steps(ModelRuns):
    """Times training steps. Results are cached.

    ``keep_scores`` says that attention stores the matrix of scores, ``recompute`` that layers
    compute their activations again before backward.
    """

    def __init__(
        self, machine: Machine, *, keep_scores: bool = False, recompute: bool = False
    ) -> None:
        super().__init__(machine)
        self.keep_scores = keep_scores
        self.recompute = recompute
        self.time = lru_cache(maxsize=1024)(self._time)

    def _time(self, model: Model, asked: Microbatch) -> StepTime:
        """Return the times of a step's parts, on the slowest path over all ranks."""
        step_times: list[StepTime] = []
        marks: list[int] = []

        def program(rank: int, torch: RuntimeContext) -> None:
            run = _RankLayers(torch, model, asked, self)
            run.step()
            if rank == 0:
                step_times.append(run.measured())
                marks.extend(run.marks_ps)

        ranks = model.config.tp_size
        log = self.run(ranks, program).op_log
        (step,) = step_times
        return replace(
            step,
            watts=average_watts(log, self.machine, ranks, marks[0], marks[-2]),
            update_watts=average_watts(log, self.machine, ranks, marks[-2], marks[-1]),
        )


class _RankLayers:
    """One rank's layers, and the marks between them."""

    def __init__(
        self, torch: RuntimeContext, model: Model, asked: Microbatch, steps: Steps
    ) -> None:
        config = model.config
        self._torch = torch
        self._recompute = steps.recompute
        self._layers = [
            tp.TransformerLayer(
                config,
                tp.TrainingAttention(
                    tp.TransformerLayer.heads(config), asked.sequences,
                    causal=model.causal, keep_scores=steps.keep_scores,
                ),
                norm=model.norm,
            )
            for _ in range(LAYERS)
        ]  # fmt: skip
        sizes: Any = {"dtype": config.dtype, "torch": torch}
        self._embedding = tp.VocabParallelEmbedding(
            config.vocab_size, config.hidden_size,
            sequence_parallel=config.sequence_parallel, **sizes,
        )  # fmt: skip
        self._output = tp.ColumnParallelLinear(
            config.hidden_size, config.vocab_size,
            sequence_parallel=config.sequence_parallel, **sizes,
        )  # fmt: skip
        self._loss = tp.VocabParallelCrossEntropy(torch)
        self._norm = torch.empty((config.hidden_size,), dtype=config.dtype)
        self._ids = torch.empty((asked.sequences * asked.tokens,), dtype="int32")
        self._config = config
        self._elements = sum(math.prod(item.shape) for item in self._layers[0].parameters())
        self._marks: list[Any] = []

    def step(self) -> None:
        """Enqueue a microbatch, forward and backward, and the update of one layer."""
        torch, config = self._torch, self._config
        moments = [torch.empty((self._elements,), dtype="f32") for _ in range(2)]
        weights = torch.empty((self._elements,), dtype="f32")
        grads = torch.empty((self._elements,), dtype=config.dtype)
        torch.ahbm.synchronize()
        self._mark()
        inputs = [self._embedding(self._ids)]
        self._mark()
        for layer in self._layers:
            inputs.append(layer(inputs[-1]))
            self._mark()
        last = inputs[-1]
        logits = self._output(ops.layer_norm(last, self._norm, self._norm))
        loss = self._loss(logits, self._ids)
        self._mark()
        grad = self._output.backward(self._loss.backward(loss))
        grad, _, _ = ops.norm_backward(grad, last, self._norm)
        self._mark()
        for layer, x in zip(reversed(self._layers), reversed(inputs[:-1]), strict=True):
            if self._recompute:
                layer(x)
            grad = layer.backward(grad)
            self._mark()
        self._embedding.backward(grad)
        self._mark()
        ops.adamw_(weights, grads, *moments, step=1)
        self._mark()
        torch.ahbm.synchronize()

    def measured(self) -> StepTime:
        """Return the times between the marks; a layer's are those of the last of each kind."""
        between = [
            before.elapsed_time(after) * 1e3
            for before, after in zip(self._marks, self._marks[1:], strict=False)
        ]
        table = math.prod(self._embedding.weight.shape)
        return StepTime(
            forward_us=between[LAYERS],
            backward_us=between[2 * LAYERS + 2],
            ends_forward_us=between[0] + between[LAYERS + 1],
            ends_backward_us=between[LAYERS + 2] + between[2 * LAYERS + 3],
            update_us=between[2 * LAYERS + 4],
            layer_elements=self._elements,
            ends_elements=table if self._config.tied_embeddings else 2 * table,
        )

    @property
    def marks_ps(self) -> list[int]:
        """When the marks were passed."""
        return [mark.handle.end_ps for mark in self._marks]

    def _mark(self) -> None:
        self._marks.append(self._torch.ahbm.current_stream().record_event())
