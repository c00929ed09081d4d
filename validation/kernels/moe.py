"""Mixtures of experts: routing and sorting, two grouped products, and what lies between them.

A rank has experts; the rows that chose an expert go through its up and down projections. Each
expert's rows are padded to whole tiles; the weights of every expert that has a row come from
HBM, which decides while rows are few. Around the products go small kernels: routing, sorting and
copying rows, quantising them, the activation, and the weighted sum over a token's experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from kernbench.library_kernels import (
    OUT_BYTES,
    ExpertProduct,
    ExpertTiles,
    LibraryKernel,
    Tiles,
    Trip,
    expert_product,
    move_rows,
    sort_choices,
)

STEPS = "moe_steps"
"""What the names of the constants of the kernels around the products begin with."""
_EXPAND, _ACTIVATE, _SUM = "_expand", "_activate", "_sum"
"""Copy or quantise rows; the activation; the weighted sum over a token's experts."""
_CHOSEN = 32
"""Experts' scores that a block reads at a time, a warp's width."""
_COUNTED = 64
"""Tokens of a block that counts and places the rows of one expert."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeKernels:
    """The structure of one implementation."""

    products: ExpertTiles
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
    sums: bool = True
    """Whether the rows of a token's experts are summed up at the end."""
    one_kernel: bool = False
    """Whether both products are one launch that keeps what lies between them."""

    def with_tiles(self, **changes: Any) -> MoeKernels:
        """Return the same with other products, as ``dataclasses.replace`` changes them."""
        return replace(self, products=replace(self.products, **changes))


def expert_kernels(problem: MoeProblem, kernels: MoeKernels) -> tuple[LibraryKernel, ...]:
    """Return the launches of a layer of experts, one after another."""
    load = problem.load
    routing = _routing(problem, kernels)
    if not load.total:
        return tuple(routing)
    if kernels.copies_rows or kernels.quantises:
        read = load.tokens * problem.hidden * OUT_BYTES
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
            read = load.slots * problem.up * OUT_BYTES
            routing.append(
                _step(problem, kernels.steps + _ACTIVATE, load.slots, read, out * problem.row_bytes)
            )
            if kernels.quantises and not kernels.copies_rows:
                routing.append(
                    _step(
                        problem,
                        kernels.steps + _EXPAND,
                        load.slots,
                        out * OUT_BYTES,
                        out * problem.row_bytes,
                    )
                )
        routing.append(down)
    if kernels.sums:
        read = load.slots * problem.hidden * OUT_BYTES
        written = load.tokens * problem.hidden * OUT_BYTES
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
    tokens = max(load.routed // problem.choices, 1)
    if kernels.choosing:
        experts = problem.all_experts or problem.experts
        trips = math.ceil(experts / _CHOSEN) if kernels.chooses_in_steps else 1
        tiles = Tiles(count=tokens, trips=trips, trip=Trip())
        library_kernels.append(LibraryKernel(name=kernels.choosing, tiles=(tiles,), resident=8))
    if kernels.routing:
        choices = 0 if kernels.sorting else load.routed
        library_kernels.append(sort_choices(kernels.routing, choices))
    if kernels.sorting:
        blocks = math.ceil(tokens / _COUNTED) * problem.experts
        tiles = Tiles(count=blocks, trips=problem.choices, trip=Trip())
        library_kernels.append(LibraryKernel(name=kernels.sorting, tiles=(tiles,), resident=8))
    return library_kernels


def _step(
    problem: MoeProblem, name: str, rows: float, read: float, written: float
) -> LibraryKernel:
    return move_rows(name, rows, read, written, problem.cache_bytes)


def _product(problem: MoeProblem, kernels: MoeKernels, depth: int, columns: int) -> LibraryKernel:
    load = problem.load
    layer = problem.hidden * (problem.up + problem.inter) * problem.weight_bytes * len(load.rows)
    product = ExpertProduct(
        rows=load.rows,
        columns=columns,
        depth=depth,
        empty=max(load.slots - load.total, 0),
        dtype=problem.dtype,
        row_bytes=problem.row_bytes,
        weight_bytes=problem.weight_bytes,
        pes=problem.pes,
        cache_bytes=problem.cache_bytes,
        layer_bytes=layer,
    )
    return expert_product(product, kernels.products)


def _joined(up: LibraryKernel, down: LibraryKernel) -> LibraryKernel:
    """Return one launch with the tiles of both products."""
    return LibraryKernel(
        name=up.name,
        tiles=up.tiles + down.tiles,
        resident=up.resident,
        hbm_read_bytes=up.hbm_read_bytes + down.hbm_read_bytes,
        hbm_written_bytes=down.hbm_written_bytes,
    )
