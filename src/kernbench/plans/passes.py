"""The time of a rank's pass through a transformer, from a few layers run on the machine.

Layers repeat, so a pass through many is the time of a few plus the time per layer for each further
one. The layers are run by a program like a user's, with ranks, launches, products with tuned tiles
and collectives; only its tensors have no data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from kernbench import ops, tp
from kernbench.dtypes import DType
from kernbench.hardware import Machine, SipSpec
from kernbench.op_log import average_watts
from kernbench.ops import GemmTile
from kernbench.plans.problem import Problem
from kernbench.plans.tiles import GemmTuner
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


class _Repeating(KernelEngine):
    """Evaluates equal launches of several runs once: a trace brings what was found of its time."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        once = super().evaluate
        self._trace = lru_cache(1024)(lambda binary, grid, ints: once(binary, grid, dict(ints)))

    def evaluate(self, binary: Any, grid: Any, ints: Mapping[int, int]) -> Any:
        return self._trace(binary, grid, tuple(ints.items()))


class ModelRuns:
    """Runs tensor-parallel programs without data, on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._engine = _Repeating(machine)
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
