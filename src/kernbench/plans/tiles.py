"""The fastest tile of a product, by timing the kernel of the library with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernbench.commands import KernelTrace
from kernbench.dtypes import DType, float32
from kernbench.errors import MachineError
from kernbench.hardware import Machine, SipSpec
from kernbench.kernel_time import Conditions, SharedCache, kernel_duration_ps
from kernbench.ops import (
    GemmTile,
    KernelProbe,
    ProbePointer,
    in_stages,
    library_tiles,
    product_call,
    sum_parts_call,
    takes_shared_operands,
)
from kernbench.plans.gemm_bounds import GemmBounds
from kernbench.plans.problem import Cached, Problem
from kernbench.triton_backend import activate

_MOST_TRACES = 32
"""Enough for all tiles of a problem, which rows of one shape on several devices share."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The fastest tile for a problem."""

    kernel_us: float
    tile: GemmTile


class GemmTuner:
    """Finds the fastest tile by timing the kernel with each candidate."""

    def __init__(self, most_traces: int | None = _MOST_TRACES) -> None:
        self._probe = KernelProbe()
        self._products = lru_cache(maxsize=most_traces)(self._product)
        self._sums = lru_cache(maxsize=most_traces)(self._sum)

    def tune(
        self,
        problem: Problem,
        machine: Machine,
        cached: Cached = (),
        *,
        only_powers_of_two: bool = False,
    ) -> Timed:
        """Return the tile with the least modeled time."""
        (best,) = self.fastest(problem, machine, cached, only_powers_of_two=only_powers_of_two)
        return best

    def fastest(
        self,
        problem: Problem,
        machine: Machine,
        cached: Cached = (),
        most: int = 1,
        among: Sequence[GemmTile] | None = None,
        *,
        only_powers_of_two: bool = False,
    ) -> list[Timed]:
        """Return the ``most`` fastest tiles that the library has, the fastest first.

        Tiles that :class:`GemmBounds` excludes are not timed. ``among`` names the candidates
        instead of the library's tiles, ``cached`` is how much of operands the cache holds, and
        ``only_powers_of_two`` says that the library has only tiles of such widths.

        Raises:
            MachineError: No tile fits, or the machine gives no rate for the dtype.
        """
        sip = machine.sip
        least = GemmBounds(problem, sip, cached)
        known = tiles(problem, sip, only_powers_of_two) if among is None else among
        bounds = sorted((least.least_ps(tile), index, tile) for index, tile in enumerate(known))
        numbers: list[tuple[int, int, GemmTile]] = []
        # Entered once here, not for every trace.
        with activate(self._probe):
            for bound, index, tile in bounds:
                if len(numbers) == most and bound >= numbers[-1][0]:
                    break
                numbers.append((self.time_ps(problem, tile, machine, cached), index, tile))
                numbers = sorted(numbers, key=lambda triple: triple[:2])[:most]
        if not numbers:
            raise MachineError(
                f"no tile of a GEMM of {problem.dtype} fits in {sip.pe.tcm_kib} KiB of TCM"
            )
        return [Timed(time_ps / 1e6, tile) for time_ps, _, tile in numbers]

    def time_ps(
        self, problem: Problem, tile: GemmTile, machine: Machine, cached: Cached = ()
    ) -> int:
        """Return the time of a product with one tile, including split-K's second kernel.

        ``cached`` is how much of the input (parameter 0) and the weights (1) the cache holds.
        """
        product = self._products(problem, tile)
        if tile.split_k == 1:
            return kernel_duration_ps(product, machine, 0, Conditions(cached=cached))
        summing = self._sums(problem.m * problem.n, problem.out, tile.split_k)
        held = SharedCache(machine.sip).result_share(4 * problem.m * problem.n * tile.split_k)
        out = 3 if tile.is_vector else 2
        first = Conditions(cached=(*cached, (out, held)))
        second = Conditions(cached=((1, held),), queued=True)
        return kernel_duration_ps(product, machine, 0, first) + kernel_duration_ps(
            summing, machine, 0, second
        )

    def _product(self, problem: Problem, tile: GemmTile) -> KernelTrace:
        sizes = (problem.m, problem.n, problem.k)
        operand = ProbePointer(problem.dtype)
        out = ProbePointer(float32 if tile.split_k > 1 else problem.out)
        return self._probe.trace(product_call(operand, operand, out, sizes, problem.dtype, tile))

    def _sum(self, size: int, out: DType, split_k: int) -> KernelTrace:
        return self._probe.trace(
            sum_parts_call(ProbePointer(out), ProbePointer(float32), size, split_k)
        )


def tiles(problem: Problem, sip: SipSpec, only_powers_of_two: bool = False) -> Iterator[GemmTile]:
    """Yield the tiles of a source's library for the machine, with as many stages as fit."""
    from_shared = takes_shared_operands(sip)
    wide = from_shared and not only_powers_of_two
    vector = problem.m == 1 and not from_shared
    for tile in library_tiles(problem.k, problem.dtype, wide, vector):
        staged = in_stages(tile, problem.dtype, sip)
        if staged is not None:
            yield staged
