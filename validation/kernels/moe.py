"""Mixtures of experts: routing and sorting, two grouped products, and what lies between them.

A rank has experts; the rows that chose an expert go through its up and down projections. Each
expert's rows are padded to whole tiles; the weights of every expert that has a row come from
HBM, which decides while rows are few. Around the products go small kernels: routing, sorting and
copying rows, quantising them, the activation, and the weighted sum over a token's experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.kernel_time import still_there
from kernbench.library_kernels import LibraryKernel, Tiles, Trip

_OUT_BYTES = 2
"""Bytes per element between the kernels: bfloat16."""
STEPS = "moe_steps"
"""What the names of the constants of the kernels around the products begin with."""
_EXPAND, _ACTIVATE, _SUM = "_expand", "_activate", "_sum"
"""Copy or quantise rows; the activation; the weighted sum over a token's experts."""
_SORTED = 1024
"""Choices in a trip of routing."""
_CHOICE_BYTES = 8
"""Bytes of a choice: an expert's number and its weight."""
_CHOSEN = 32
"""Experts' scores that a block reads at a time, a warp's width."""
_COUNTED = 64
"""Tokens of a block that counts and places the rows of one expert."""
_DEQUANT_SIMPLE = 2
"""Per packed weight: shift, mask and scale, on two elements at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """The rows of one rank's experts."""

    rows: tuple[int, ...]
    """The rows of each expert that has any."""
    tokens: int
    """Tokens that the rank reads and sums up."""
    routed: int
    """Choices that are sorted by expert: those of all tokens that the rank is told of."""
    slots: int
    """Rows that the kernels around the products go over: those of other ranks' experts too, where
    these are not taken out."""

    @property
    def total(self) -> int:
        return sum(self.rows)

    @property
    def mean(self) -> float:
        return self.total / max(len(self.rows), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeProblem:
    """The experts of one rank."""

    load: ExpertLoad
    experts: int
    """The experts of the rank."""
    all_experts: int = 0
    """The experts of all ranks: what a token chooses among. Those of the rank when 0."""
    choices: int = 1
    """Experts of a token."""
    hidden: int
    inter: int
    """Columns of the rank's up projection, gate not counted."""
    gated: bool = True
    dtype: str = "bfloat16"
    """The dtype that the matrix engine multiplies."""
    row_bytes: float = 2.0
    """Bytes per element of the products' rows, scales included."""
    weight_bytes: float = 2.0
    """Bytes per weight, scales included."""
    pes: int = 1
    """The PEs of the device, as a library's choice of tiles knows them."""
    cache_bytes: float = 0.0
    """Up to which a footprint stays in the cache from launch to launch: 0 where all comes from
    HBM every time."""

    @property
    def up(self) -> int:
        """Columns of the up projection."""
        return self.inter * (2 if self.gated else 1)

    @property
    def dequantised(self) -> bool:
        """Whether weights are unpacked to the rows' format before they are multiplied."""
        return self.weight_bytes < 1 < self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeKernels:
    """The structure of one implementation."""

    name: str
    """The name of its products' constants."""
    row_tiles: tuple[int, ...]
    """Rows of a tile, of which the one is taken that holds an expert's mean."""
    columns: tuple[int, ...]
    """Columns of a tile: the most with which every PE has a tile, else the fewest."""
    depth: int
    """Elements of the inner dimension in a trip."""
    resident: int = 2
    pipelined: bool = False
    """Whether loads run ahead of products, so that their latency adds nothing to arithmetic."""
    copies_rows: bool = False
    """Whether rows are copied into the order of experts before the products."""
    activates_apart: bool = True
    quantises: bool = False
    steps: str = STEPS
    """What the names of the constants of the kernels that copy, quantise, activate and sum up rows
    begin with."""
    routing: str = ""
    """Name of the constants of what comes before the products: choose, count, sort. Nothing does
    when empty."""
    choosing: str = ""
    """Name of the constants of the kernel that chooses experts, a block for each token; nothing
    does when empty."""
    chooses_in_steps: bool = False
    """Whether it goes over the scores of a token a warp's width at a time, as PyTorch's does."""
    sorting: str = ""
    """Name of the constants of kernels that count and place rows with a block for each expert of
    the rank and some tokens. ``routing`` sorts when empty: one block, some choices at a time."""
    striped: bool = False
    """Whether all tiles' trips are dealt to the PEs in equal stripes."""
    sums: bool = True
    """Whether the rows of a token's experts are summed up at the end."""
    one_kernel: bool = False
    """Whether both products are one launch that keeps what lies between them."""


def expert_kernels(problem: MoeProblem, kernels: MoeKernels) -> tuple[LibraryKernel, ...]:
    """Return the launches of a layer of experts, one after another."""
    load = problem.load
    routing = _routing(problem, kernels)
    if not load.total:
        return tuple(routing)
    if kernels.copies_rows or kernels.quantises:
        read = load.tokens * problem.hidden * _OUT_BYTES
        rows = load.total if kernels.copies_rows else load.tokens
        routing.append(
            _step(
                problem,
                kernels.steps + _EXPAND,
                rows,
                read,
                rows * problem.hidden * problem.row_bytes,
            )
        )
    up = _product(problem, kernels, problem.hidden, problem.up)
    down = _product(problem, kernels, problem.inter, problem.hidden)
    if kernels.one_kernel:
        routing.append(_joined(up, down))
    else:
        routing.append(up)
        if kernels.activates_apart:
            out = load.slots * problem.inter
            read = load.slots * problem.up * _OUT_BYTES
            routing.append(
                _step(problem, kernels.steps + _ACTIVATE, load.slots, read, out * problem.row_bytes)
            )
            if kernels.quantises and not kernels.copies_rows:
                routing.append(
                    _step(
                        problem,
                        kernels.steps + _EXPAND,
                        load.slots,
                        out * _OUT_BYTES,
                        out * problem.row_bytes,
                    )
                )
        routing.append(down)
    if kernels.sums:
        read = load.slots * problem.hidden * _OUT_BYTES
        written = load.tokens * problem.hidden * _OUT_BYTES
        routing.append(_step(problem, kernels.steps + _SUM, load.tokens, read, written))
    return tuple(routing)


def expert_products(problem: MoeProblem, kernels: MoeKernels) -> tuple[LibraryKernel, ...]:
    """Return the products alone, as sources do that time only these."""
    up = _product(problem, kernels, problem.hidden, problem.up)
    down = _product(problem, kernels, problem.inter, problem.hidden)
    return (_joined(up, down),) if kernels.one_kernel else (up, down)


def _routing(problem: MoeProblem, kernels: MoeKernels) -> list[LibraryKernel]:
    """Return what chooses experts and sorts rows by them."""
    library_kernels = []
    load = problem.load
    trip = Trip(loaded_bytes=_SORTED * _CHOICE_BYTES)
    tokens = max(load.routed // problem.choices, 1)
    if kernels.choosing:
        experts = problem.all_experts or problem.experts
        trips = math.ceil(experts / _CHOSEN) if kernels.chooses_in_steps else 1
        tiles = Tiles(count=tokens, trips=trips, trip=Trip())
        library_kernels.append(LibraryKernel(name=kernels.choosing, tiles=(tiles,), resident=8))
    if kernels.routing:
        trips = 0 if kernels.sorting else math.ceil(load.routed / _SORTED)
        library_kernels.append(
            LibraryKernel(name=kernels.routing, tiles=(Tiles(count=1, trips=trips, trip=trip),))
        )
    if kernels.sorting:
        blocks = math.ceil(tokens / _COUNTED) * problem.experts
        tiles = Tiles(count=blocks, trips=problem.choices, trip=Trip())
        library_kernels.append(LibraryKernel(name=kernels.sorting, tiles=(tiles,), resident=8))
    return library_kernels


def _step(
    problem: MoeProblem, name: str, rows: float, read: float, written: float
) -> LibraryKernel:
    """Return a kernel that only moves bytes; what the cache holds does not come from HBM."""
    count = max(int(rows), 1)
    missed = _missed(problem, read + written)
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=count,
                trips=1,
                trip=Trip(loaded_bytes=read / count),
                stored_bytes=written / count,
            ),
        ),
        resident=8,
        hbm_read_bytes=read * missed,
        hbm_written_bytes=written * missed,
    )


def _missed(problem: MoeProblem, footprint: float) -> float:
    """Return the share of a footprint that the cache does not keep: all of twice what it holds."""
    if not problem.cache_bytes:
        return 1.0
    return 1.0 - still_there(footprint / problem.cache_bytes)


def rows_of_tile(load: ExpertLoad, kernels: MoeKernels) -> int:
    """Return the rows of a product's tile."""
    return next((tile for tile in kernels.row_tiles if tile >= load.mean), kernels.row_tiles[-1])


def _product(problem: MoeProblem, kernels: MoeKernels, depth: int, columns: int) -> LibraryKernel:
    load = problem.load
    rows = rows_of_tile(load, kernels)
    high = sum(math.ceil(row / rows) for row in load.rows)
    width = _columns(kernels, high, columns, problem.pes)
    tiles = high * math.ceil(columns / width)
    trips: float = math.ceil(depth / kernels.depth)
    stored = 2.0 * rows * width
    if kernels.striped:
        stripes = min(problem.pes * kernels.resident, tiles * trips)
        trips, tiles, stored = tiles * trips / stripes, int(stripes), stored * tiles / stripes
    weights = len(load.rows) * depth * columns * problem.weight_bytes
    read = load.total * depth * problem.row_bytes
    written = load.slots * columns * _OUT_BYTES
    layer = problem.hidden * (problem.up + problem.inter) * problem.weight_bytes * len(load.rows)
    missed = _missed(problem, layer + read + written)
    loaded = kernels.depth * (rows * problem.row_bytes + width * problem.weight_bytes)
    distinct = min((weights + read) / max(tiles * trips * loaded, 1.0), 1.0)
    trip = Trip(
        flops=2.0 * rows * width * kernels.depth,
        dtype=problem.dtype,
        simple=_DEQUANT_SIMPLE * width * kernels.depth if problem.dequantised else 0.0,
        loaded_bytes=loaded,
        missed=missed * distinct,
        pipelined=kernels.pipelined,
    )
    result = [Tiles(count=tiles, trips=trips, trip=trip, stored_bytes=stored)]
    if load.slots > load.total:
        # Rows of other ranks' experts are set to 0.
        empty = math.ceil((load.slots - load.total) / rows) * math.ceil(columns / width)
        result.append(Tiles(count=empty, trips=0, trip=trip, stored_bytes=2.0 * rows * width))
    return LibraryKernel(
        name=kernels.name,
        tiles=tuple(result),
        resident=kernels.resident,
        hbm_read_bytes=weights * missed + read * _missed(problem, read + written),
        hbm_written_bytes=written * _missed(problem, read + written),
    )


def _columns(kernels: MoeKernels, high: int, columns: int, pes: int) -> int:
    """Return the columns of a tile, of which so many lie above each other."""
    widths = [min(column, columns) for column in kernels.columns]
    return next((width for width in widths if high * (columns // width) >= pes), widths[-1])


def _joined(up: LibraryKernel, down: LibraryKernel) -> LibraryKernel:
    """Return one launch with the tiles of both products."""
    return LibraryKernel(
        name=up.name,
        tiles=up.tiles + down.tiles,
        resident=up.resident,
        hbm_read_bytes=up.hbm_read_bytes + down.hbm_read_bytes,
        hbm_written_bytes=down.hbm_written_bytes,
    )
