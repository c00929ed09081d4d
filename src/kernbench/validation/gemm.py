"""GEMM rows: kernbench's own Triton GEMM on the row's machine, with the fastest tile of a list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from kernbench.commands import KernelTrace
from kernbench.dtypes import bfloat16, float8_e4m3fn, float16, float32
from kernbench.errors import MachineError
from kernbench.hardware import Machine, SipSpec
from kernbench.ops import (
    GemmTile,
    KernelProbe,
    Pointer,
    held_share,
    product_call,
    sum_parts_call,
)
from kernbench.sim_engine import Conditions, schedule_kernel
from kernbench.validation.devices import Machines
from kernbench.validation.gemm_bounds import least_ps
from kernbench.validation.harness import Harness, gemm_harness
from kernbench.validation.predictor import Answer
from kernbench.validation.problem import Cached, Problem
from kernbench.validation.reference import Row

DTYPES = {"bf16": bfloat16, "fp16": float16, "fp32": float32, "fp8": float8_e4m3fn}

# Rows and columns of a tile (the second number of a pair is an extra piece), and split-K.
_TILES: list[tuple[int, tuple[int, int], tuple[int, ...]]] = [
    (64, (32, 0), (1, 8)),
    (64, (64, 0), (1, 4, 8, 16)),
    (64, (128, 0), (1, 6)),
    (128, (128, 0), (1, 3, 6)),
    (128, (256, 0), (1, 2, 3)),
]
# Libraries for matrix engines that take operands from shared memory also have tiles whose width
# is no power of two.
_WIDE_TILES: list[tuple[int, tuple[int, int], tuple[int, ...]]] = [
    (128, (64, 32), (1,)),
    (128, (128, 32), (1,)),
    (128, (128, 64), (1,)),
]
_LEAST_K = 256
"""A part of a split K is at least this long."""
_MOST_STAGES = 5
_MOST_TRACES = 32
"""All tiles of one problem, so that rows of the same shape on several devices share them."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The fastest tile for a problem."""

    kernel_us: float
    tile: GemmTile


class GemmPredictor:
    """Answers GEMM rows."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._tuner = GemmTuner()

    def predict(self, row: Row) -> Answer:
        dtype = DTYPES.get(row.dtype)
        if row.op != "gemm":
            return Answer(None, f"no kernel for op {row.op}")
        if dtype is None:
            return Answer(None, f"no Triton dtype for {row.dtype}")
        machine = self._machines.machine_of(row.device)
        problem = Problem.of(row, dtype)
        harness = gemm_harness(row.source, machine.name)
        try:
            best = self._tuner.tune(problem, machine, harness)
        except MachineError as error:
            return Answer(None, str(error).split(";")[0])
        return Answer(harness.time_us(best.kernel_us), how=str(best.tile))


class GemmTuner:
    """Finds the fastest tile by timing the kernel with each that may be the fastest."""

    def __init__(self, most_traces: int | None = _MOST_TRACES) -> None:
        self._probe = KernelProbe()
        self._traces = lru_cache(maxsize=most_traces)(self._trace)

    def tune(self, problem: Problem, machine: Machine, harness: Harness) -> Timed:
        """Return the tile with the least modeled time.

        Tiles that cannot be faster than the best one so far, by a bound that only adds up what
        their GEMM engines and caches must do, are not timed.
        """
        sip = machine.sip
        cached = harness.cached(problem.input_bytes, problem.weight_bytes, sip)
        bounds = sorted(
            (
                (least_ps(problem, tile, sip, cached), index, tile)
                for index, tile in enumerate(self.fitting(problem, sip))
            ),
        )
        best: tuple[int, GemmTile] | None = None
        for bound, _, tile in bounds:
            if best is not None and bound >= best[0]:
                break
            time_ps = self.time_ps(problem, tile, machine, cached)
            if best is None or time_ps < best[0]:
                best = time_ps, tile
        if best is None:
            raise MachineError(
                f"no tile of a GEMM of {problem.dtype} fits in {sip.pe.tcm_kib} KiB of TCM"
            )
        return Timed(best[0] / 1e6, best[1])

    def fitting(self, problem: Problem, sip: SipSpec) -> Iterator[GemmTile]:
        """Yield the tiles of the machine's library that serve a problem."""
        for tile in tiles(problem, sip):
            if tile.split_k == 1 or tile.steps(problem.k) * tile.block_k >= _LEAST_K:
                yield tile

    def time_ps(
        self, problem: Problem, tile: GemmTile, machine: Machine, cached: Cached = ()
    ) -> int:
        """Return the time of a product with one tile, split-K's second kernel included.

        ``cached`` is how much of the input (parameter 0) and the weights (1) the cache holds.
        """
        product, summing = self._traces(problem, tile)
        if summing is None:
            return schedule_kernel(product, machine, 0, Conditions(cached=cached)).duration_ps
        held = held_share(4 * problem.m * problem.n * tile.split_k, machine.sip)
        first = Conditions(cached=(*cached, (2, held)))
        second = Conditions(cached=((1, held),), queued=True)
        return (
            schedule_kernel(product, machine, 0, first).duration_ps
            + schedule_kernel(summing, machine, 0, second).duration_ps
        )

    def _trace(self, problem: Problem, tile: GemmTile) -> tuple[KernelTrace, KernelTrace | None]:
        sizes = (problem.m, problem.n, problem.k)
        operand, out = Pointer(problem.dtype), Pointer(problem.out)
        parts = Pointer(float32) if tile.split_k > 1 else out
        product = self._probe.trace(product_call(operand, parts, sizes, problem.dtype, tile))
        if tile.split_k == 1:
            return product, None
        summing = sum_parts_call(out, parts, problem.m * problem.n, tile.split_k)
        return product, self._probe.trace(summing)


def tiles(problem: Problem, sip: SipSpec) -> Iterator[GemmTile]:
    """Yield the tiles that a library for the machine has, in as many stages as fit."""
    block_k = max(64, 64 * 2 // problem.dtype.itemsize) if problem.dtype.itemsize < 4 else 32
    wide = sip.pe.gemm.native_m >= 64
    for block_m, (first, second), splits in _TILES + (_WIDE_TILES if wide else []):
        accumulator = 4 * block_m * (first + second)
        stage = (block_m + first + second) * block_k * problem.dtype.itemsize
        held = max(accumulator, sip.pe.register_kib * 1024)
        stages = min(_MOST_STAGES, (sip.tcm_bytes - held) // stage)
        if stages < 2:
            continue
        for split in splits:
            yield GemmTile(
                block_m, first, block_k, block_n2=second, split_k=split, num_stages=stages
            )
