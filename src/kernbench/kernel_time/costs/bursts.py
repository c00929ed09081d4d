"""How many bytes of a tile a DMA command touches, and how many DRAM bursts that takes.

Masked-off elements are not touched; strided ones move whole bursts. The first byte of a tile is
taken as the start of a burst, so that programs whose tiles have the same shape cost the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    DmaRead,
    DmaWrite,
    Predicate,
    access_of,
    axis_dim,
    distinct_values,
    is_axis,
    loop_dim,
)
from kernbench.dtypes import Array
from kernbench.kernel_time.costs.fingerprints import SPREAD, fold
from kernbench.kernel_time.program.origins import leaves
from kernbench.kernel_time.program.timed_plan import ONE_PATH, CommandSite

Dims = tuple[int, ...]

_AXIS = axis_dim(0)
_LANES, _ACCESS_BYTES, _LINE_BYTES = 32, 16, 128
FIRST_AXIS_OF_EQUALS = tuple(map(int, version("triton").split(".")[:2])) < (3, 7)
"""Whether lanes lie along the first of axes on which as many elements are contiguous: so Triton
laid them up to 3.6, and since along the last."""


@dataclass(frozen=True, slots=True)
class TouchedBytes:
    """What one execution of a DMA command moves, for one program."""

    useful_bytes: int
    """Elements where the mask holds: what crosses the PE's port."""
    burst_bytes: int
    """The bursts that hold them: what HBM moves."""
    run_bytes: int = 0
    """How many of the useful bytes follow each other without a gap, on average."""
    line_bytes: int = 0
    """The lines that accesses of whole warps touch, each as often as one does."""


Moved = tuple[Dims, tuple[TouchedBytes, ...]]
"""The loop dims that it varies over, outermost first, and one entry per combination of their
iterations, the innermost fastest."""


def touched(
    site: CommandSite, program: int, burst_bytes: int, trips: Mapping[int, int] = ONE_PATH
) -> Moved:
    """Return what a DMA command of known addresses moves, for the program at a position.

    ``trips`` are its trip counts of loops that programs go around differently often.
    """
    tile = tile_of(site, program, burst_bytes, trips)
    # Programs of many launches have tiles of the same form.
    return _known(tile) if tile.size_bytes <= _MOST_KEPT_BYTES else _each_iteration(tile)


def tile_of(
    site: CommandSite, program: int, burst_bytes: int, trips: Mapping[int, int] = ONE_PATH
) -> DmaTile:
    """Return what is known of the tile that a program's DMA command moves."""
    command = site.command
    assert isinstance(command, DmaRead | DmaWrite | Atomic)
    access, mask = access_of(command), command.mask
    known = mask.at(PROGRAM, program).terms if isinstance(mask, Predicate) else {}
    return DmaTile(
        access.shape,
        access.dtype.itemsize,
        tuple(
            (loop_dim(loop.loop_id), trips.get(loop.loop_id, loop.trip_count))
            for loop in site.loops
        ),
        _Terms(_first_iterations(_offsets_of(access, program), trips)),
        _Terms(_first_iterations(known, trips)),
        burst_bytes,
    )


def fresh_share(
    site: CommandSite, touched: TouchedBytes, burst_bytes: int, runs: int | None = None
) -> Fraction:
    """Return the share of a load's bursts that its loop's iteration before did not touch.

    Its runs of bytes move on by a step from iteration to iteration; where the step is less than a
    run, or than the burst that holds the run, a part was there before. The first of a loop's
    iterations finds nothing; a loop that turns once is none. Of addresses that are data no step is
    known: what a loop carries has the origin of its first value. ``runs`` is how often a program
    runs the load, where its loops turn less often than those of others.
    """
    turning = [loop for loop in site.loops if loop.trip_count > 1]
    if not turning:
        return Fraction(1)
    innermost, step = loop_dim(turning[-1].loop_id), 0
    if site.gather is not None and any(innermost in leaf.dims for leaf in leaves(site.gather)):
        return Fraction(1)
    for dims, array in access_of(site.command).offset.terms.items():  # type: ignore[arg-type]
        if innermost not in dims:
            continue
        if dims[-1] != innermost or array.shape[-1] < 2:
            return Fraction(1)
        step += int(np.abs(array[..., -1] - array[..., 0]).max()) // (array.shape[-1] - 1)
    if site.gather is not None and not step:
        return Fraction(1)
    turns = max(min(turning[-1].trip_count, site.count if runs is None else runs), 1)
    moved_on = min(Fraction(step, max(touched.run_bytes, burst_bytes)), Fraction(1))
    return (1 + (turns - 1) * moved_on) / turns


_MOST_KEPT_BYTES = 1 << 15


class _Terms:
    """Arrays by the dims that they vary over, equal to others of the same numbers."""

    __slots__ = ("by_dims", "content")

    def __init__(self, by_dims: Mapping[Dims, Array]) -> None:
        self.by_dims = by_dims
        self.content = tuple(
            (dims, array.shape, array.tobytes()) for dims, array in by_dims.items()
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Terms) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)


@dataclass(frozen=True, slots=True)
class DmaTile:
    """The addresses and mask of one program's DMA command, relative to its tile.

    What it moves follows from this, so it is found once for programs, launches and machines alike.
    """

    shape: tuple[int, ...]
    itemsize: int
    loops: tuple[tuple[int, int], ...]
    """Dims and trip counts of the loops around it, outermost first."""
    offsets: _Terms
    masks: _Terms
    burst_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(len(raw) for terms in (self.offsets, self.masks) for *_, raw in terms.content)


def _offsets_of(access: Access, program: int) -> dict[Dims, Array]:
    """Return one program's offsets from the start of its tile, as far as they vary over axes."""
    offsets: dict[Dims, Array] = {}
    for dims, array in access.offset.terms.items():
        if not dims or not is_axis(dims[-1]):
            continue
        if dims[0] == PROGRAM:
            dims, array = dims[1:], array[min(program, len(array) - 1)]
        array = array - array[..., :1]
        offsets[dims] = offsets[dims] + array if dims in offsets else array
    return offsets


def _first_iterations(terms: dict[Dims, Array], trips: Mapping[int, int]) -> dict[Dims, Array]:
    """Return the terms without the iterations that a program of these trip counts leaves out."""
    lengths = {loop_dim(loop_id): count for loop_id, count in trips.items()}
    if lengths.keys().isdisjoint(dim for dims in terms for dim in dims):
        return terms
    cut = {
        dims: array[tuple(slice(lengths.get(dim)) for dim in dims)] for dims, array in terms.items()
    }
    return {
        dims: array for dims, array in cut.items() if array.dtype != np.bool_ or not array.all()
    }


def _each_iteration(tile: DmaTile) -> Moved:
    terms, masks = tile.offsets.by_dims, tile.masks.by_dims
    dims, which = alike_iterations([*terms.items(), *masks.items()], tile.loops)
    shape = tuple(trip_count for dim, trip_count in tile.loops if dim in dims)
    _, first = np.unique(which, return_index=True)
    touched_bytes = []
    for flat in first.tolist():
        index = dict(zip(dims, np.unravel_index(flat, shape or (1,)), strict=False))
        touched_bytes.append(
            _bursts(
                tile.shape,
                tile.itemsize,
                [(d[-1], _at(a, d, index)) for d, a in terms.items()],
                [(d[-1] if d else -1, _at(a, d, index)) for d, a in masks.items()],
                tile.burst_bytes,
            )
        )
    return dims, tuple(touched_bytes[index] for index in which.tolist())


def alike_iterations(
    terms: Sequence[tuple[Dims, Array]], loops: Sequence[tuple[int, int]]
) -> tuple[Dims, Array]:
    """Return the loops that terms vary over, and a number for each iteration: equal where they do.

    The numbers count from 0; the innermost loop is the fastest.
    """
    varying = {dim for dims, _ in terms for dim in dims}
    loops = [(dim, trip_count) for dim, trip_count in loops if dim in varying]
    dims = tuple(dim for dim, _ in loops)
    marks = np.zeros(tuple(count for _, count in loops) or (1,), dtype=np.int64)
    if loops:
        for each_dims, array in terms:
            kept = tuple(d for d in each_dims if d in dims)
            axes = tuple(slice(None) if dim in kept else None for dim in dims)
            marks = marks * SPREAD + fold(array, each_dims, dims)[axes]
    _, which = np.unique(marks, return_inverse=True)
    return dims, which.reshape(-1)


_known = lru_cache(maxsize=2048)(_each_iteration)


def _at(array: Array, dims: Dims, index: dict[int, Any]) -> Array:
    """Return the part of a term at the given iterations: a vector, or one number."""
    picked: Array = array[
        tuple(
            min(index[d], length - 1) if d in index else slice(None)
            for d, length in zip(dims, array.shape, strict=True)
        )
    ]
    return picked


def _bursts(
    shape: tuple[int, ...],
    itemsize: int,
    terms: list[tuple[int, Array]],
    masks: list[tuple[int, Array]],
    burst_bytes: int,
) -> TouchedBytes:
    active = [np.ones(length, dtype=np.bool_) for length in shape]
    for dim, held in masks:
        if not is_axis(dim):
            if not held.all():
                return TouchedBytes(0, 0)
        else:
            active[dim - _AXIS] &= held
    if not all(held.any() for held in active):
        return TouchedBytes(0, 0)
    axes = [np.zeros(length, dtype=np.int64) for length in shape]
    for dim, vector in terms:
        axes[dim - _AXIS] = axes[dim - _AXIS] + vector
    picked = [distinct_values(axis[held]) for axis, held in zip(axes, active, strict=True)]
    # An element that several positions name (a broadcast) is moved once.
    useful = int(np.prod([len(axis) for axis in picked], dtype=np.int64)) * itemsize
    bursts, runs = _count_bursts(picked, itemsize, burst_bytes)
    lines = _count_lines(axes, active, itemsize) * _LINE_BYTES
    return TouchedBytes(useful, bursts * burst_bytes, useful // runs, lines)


def _count_lines(axes: list[Array], active: list[Array], itemsize: int) -> int:
    """Count the lines that accesses of warps touch: a multiprocessor's cache serves one a clock.

    Lanes lie along the axis on which most elements are contiguous first, each with up to 16 bytes.
    Source: ``Coalesce.cpp`` of Triton; NVIDIA's Nsight Compute documentation, L1TEX wavefronts.
    """
    breaks = [np.flatnonzero(np.diff(axis, prepend=axis[0]) != itemsize) for axis in axes]
    longest = [
        int(np.diff(at, append=len(axis)).max()) for at, axis in zip(breaks, axes, strict=True)
    ]
    order = sorted(range(len(axes)), key=longest.__getitem__, reverse=FIRST_AXIS_OF_EQUALS)
    accesses, starts, left = 1, np.zeros(1, dtype=np.int64), _LANES
    for place, at in enumerate(order if FIRST_AXIS_OF_EQUALS else order[::-1]):
        width = 1 if place else min(longest[at], _ACCESS_BYTES // itemsize)
        step = max(min(left * width, len(axes[at])), width)
        # Those of a warp that is off altogether access nothing.
        blocks = distinct_values(np.flatnonzero(active[at]) // step)
        taken = slice(blocks[0] * step, (blocks[0] + 1) * step)
        firsts = axes[at][taken][active[at][taken]][::width]
        starts = (firsts[:, None] + starts).reshape(-1)
        accesses, left = accesses * len(blocks), max(left * width // step, 1)
    return accesses * len(distinct_values(starts // _LINE_BYTES))


def _count_bursts(axes: list[Array], itemsize: int, burst_bytes: int) -> tuple[int, int]:
    """Count the bursts under the sums of one offset from every axis, and the runs without a gap."""
    starts, length = np.zeros(1, dtype=np.int64), itemsize
    # From the densest axis on: contiguous elements join into one segment.
    for axis in sorted(axes, key=lambda a: int(np.diff(a).min()) if len(a) > 1 else 0):
        if len(axis) == 1:
            continue
        if len(starts) == 1 and (np.diff(axis) == length).all():
            length *= len(axis)
        else:
            starts = (axis[:, None] + starts[None, :]).reshape(-1)
    return spans(np.sort(starts - starts.min()), length, burst_bytes)


def spans(starts: Array, length: int, burst_bytes: int) -> tuple[int, int]:
    """Return how many bursts lie under segments of a length, and how many runs without a gap.

    ``starts`` are the segments' first bytes, in rising order.
    """
    first, last = starts // burst_bytes, (starts + length - 1) // burst_bytes
    # A burst that the segment before already took is not moved again.
    taken = np.maximum.accumulate(np.concatenate(([-1], last[:-1])))
    bursts = int(np.maximum(last - np.maximum(first, taken + 1) + 1, 0).sum())
    runs = 1 + int((np.diff(starts) > length).sum())
    return bursts, runs
