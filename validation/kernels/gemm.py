"""Products as vendors' libraries do them: tiles to choose from, cuts of K, quantised inputs.

A tile keeps ``m`` x ``n`` results and goes over its part of K, so much at a time. A library has
several tiles, and may cut K among several tiles whose partial results a second kernel adds up;
which it takes is for the caller to find, as a tuned library does: the fastest of
:func:`product_choices`.
Two PEs that work on one tile (2-SM instructions of Blackwell) are two tiles that load the other
operand once between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.library_kernels import LibraryKernel, Tiles, Trip

_OVERLAP = 3.0
_PARTIAL_BYTES = 4
_SUM_ELEMENTS = 1024
"""Results that one tile of the kernel that adds up parts of K writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """``C[m, n] = A[m, k] @ B[k, n]`` with operands that may be narrower than they multiply."""

    m: int
    n: int
    k: int
    dtype: str
    """The dtype that the matrix engine multiplies: a key of its rates."""
    input_bytes: float
    """Bytes per element of A, with its share of the scales."""
    weight_bytes: float
    """Bytes per element of B, with its share of the scales."""
    result_bytes: float = 2.0
    batch: int = 1
    cold_input: float = 1.0
    """Share of A that comes from HBM; the rest is in the cache from the launch before."""
    cold_weights: float = 1.0
    """Share of B that comes from HBM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryTile:
    """One tile of a library."""

    m: int
    n: int
    k_bytes: int = 128
    """Bytes of the wider operand per trip: what a swizzled row of shared memory holds."""
    pes: int = 1
    """The PEs that work on a tile together, each on its rows, and load B once between them."""
    splits: int = 1
    """Parts of K, each a tile of its own."""
    cluster_rows: int = 1
    """Tiles above each other that load B once between them; idle ones fill the last cluster."""
    cluster_cols: int = 1
    """Tiles beside each other that load A once between them."""
    in_waves: bool = False
    missed: float = 0.0
    overlap: float | None = None
    """All as in ``RuledTile``, of operands that come from HBM."""
    moves_per_result: float = 0.0
    """Moves of the vector engine per result and trip: accumulators that the registers do not
    hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmKernel:
    """The structure of one library's products."""

    name: str
    tiles: Sequence[LibraryTile]
    sum_name: str = ""
    """The name of the kernel that adds up parts of K."""
    simple_per_result: float = 0.0
    """Arithmetic of the vector engine per result and 128 of K: scales of blocks."""
    simple_per_weight: float = 0.0
    """The same per element of B: integers that become floating point."""
    resident: int = 1
    """Tiles that share a PE at a time."""
    overlap: float = _OVERLAP
    """How well tiles, cache and HBM work beside each other, as in ``LibraryKernel``: tiles start
    and end with loads and stores alone."""
    pipelined: bool = False
    """Whether loads of the next trips run ahead: a trip takes its latency or its arithmetic."""


def product_choices(
    problem: GemmProblem, kernel: GemmKernel
) -> tuple[tuple[LibraryKernel, ...], ...]:
    """Return the launches of a product, for each tile that it can take.

    A tile that cuts K into more parts than it has trips is none of them.
    """
    wider = max(problem.input_bytes, problem.weight_bytes)
    choices = []
    for tile in kernel.tiles:
        step = _k_of(tile, wider)
        if tile.splits == 1 or tile.splits <= math.ceil(problem.k / step):
            choices.append(_launches(problem, kernel, tile, step))
    return tuple(choices)


def _k_of(tile: LibraryTile, wider: float) -> int:
    """Return how much of K one trip takes: whole bytes of the wider operand, scales apart."""
    per_byte = 2 if wider < 1 else 1 / math.floor(wider)
    return max(round(tile.k_bytes * per_byte), 16)


def _launches(
    problem: GemmProblem, kernel: GemmKernel, tile: LibraryTile, step: int
) -> tuple[LibraryKernel, ...]:
    rows, cols = tile.m // tile.pes, tile.n
    count = _filled(problem.m, tile.m, tile.cluster_rows) * _filled(
        problem.n, tile.n, tile.cluster_cols
    )
    loaded_rows = rows / tile.cluster_cols
    loaded_cols = cols / (tile.pes * tile.cluster_rows)
    trip = Trip(
        flops=2.0 * rows * cols * step,
        dtype=problem.dtype,
        simple=kernel.simple_per_result * rows * cols * step / 128
        + kernel.simple_per_weight * cols * step
        + tile.moves_per_result * rows * cols,
        loaded_bytes=(loaded_rows * problem.input_bytes + loaded_cols * problem.weight_bytes)
        * step,
        missed=tile.missed * problem.cold_weights,
        pipelined=kernel.pipelined,
    )
    partial = tile.splits > 1
    stored = _PARTIAL_BYTES if partial else problem.result_bytes
    results = problem.batch * problem.m * problem.n
    product = LibraryKernel(
        name=kernel.name,
        tiles=(
            Tiles(
                count=problem.batch * count * tile.pes * tile.splits,
                trips=math.ceil(math.ceil(problem.k / step) / tile.splits),
                trip=trip,
                stored_bytes=stored * rows * cols,
            ),
        ),
        resident=kernel.resident,
        hbm_read_bytes=problem.batch
        * problem.k
        * (
            problem.m * problem.input_bytes * problem.cold_input
            + problem.n * problem.weight_bytes * problem.cold_weights
        ),
        # Partial results are added up while the cache still has them.
        hbm_written_bytes=0.0 if partial else results * problem.result_bytes,
        overlap=tile.overlap or kernel.overlap,
        in_waves=tile.in_waves,
    )
    return (product, _sum_of_parts(problem, kernel, tile)) if partial else (product,)


def _filled(size: int, tile: int, cluster: int) -> int:
    """Return how many tiles cover a size, in whole clusters."""
    return math.ceil(math.ceil(size / tile) / cluster) * cluster


def _sum_of_parts(problem: GemmProblem, kernel: GemmKernel, tile: LibraryTile) -> LibraryKernel:
    results = problem.batch * problem.m * problem.n
    loaded = Trip(loaded_bytes=_PARTIAL_BYTES * tile.splits * _SUM_ELEMENTS)
    return LibraryKernel(
        name=kernel.sum_name,
        tiles=(
            Tiles(
                count=math.ceil(results / _SUM_ELEMENTS),
                trips=1,
                trip=loaded,
                stored_bytes=problem.result_bytes * _SUM_ELEMENTS,
            ),
        ),
        resident=2,
        hbm_written_bytes=results * problem.result_bytes,
        overlap=kernel.overlap,
    )
