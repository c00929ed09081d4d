"""Persistent kernels, whose programs loop over tiles: each iteration becomes a program.

Such a program is one loop that carries no data. If no iteration reads what another one stored, an
iteration is equivalent to a program, and the optimizations of grids apply: tiles of all iterations
form an outer product (``composite``), chunks are as large as the cache, and stores fill whole
buffers. Whether stored bytes are read depends on where the parameters point, so a plan compares
those. A launch that stores to a buffer to which two of its parameters point runs the loop as
written.

No order may be lost: no atomic, print or assert, no store inside of another loop, no parameter that
is both loaded and stored, and no two stores to one parameter that write the same byte. Programs of
a launch have no order that a device promises, but the iterations of one program have. Groups that
differ only in their number of tiles, addresses and masks become one. Timing is not affected: it
schedules the programs that the launch has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PROGRAM,
    Command,
    Dims,
    DmaRead,
    DmaWrite,
    Gemm,
    Loop,
    Math,
    Predicate,
    ProgramGroup,
    Reduce,
    Separable,
    SourceLine,
    Tile,
    aligned,
    axis_dim,
    loop_dim,
    walk,
)
from kernbench.dtypes import DType
from kernbench.replay.plans.rewriting import Joining, Known, with_known

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 1 << 24
"""Whose places are looked at one by one, once per trace."""


def iterations_as_programs(groups: Sequence[ProgramGroup]) -> tuple[ProgramGroup, ...] | None:
    """Return the groups with a program per iteration, or None if one is not a persistent loop.

    Groups that only differ in the number of tiles per program become one. The result is right if
    no stored parameter points into the buffer of another parameter.
    """
    # A program without tiles stores nothing.
    groups = [g for g in groups if not all(isinstance(read, DmaRead | Math) for read in g.body)]
    loops = [_persistent_loop(group.body) for group in groups]
    if not loops or any(loop is None for loop in loops):
        return None
    spread = [_spread(group, loop) for group, loop in zip(groups, loops, strict=True) if loop]
    trip_counts = [loop.trip_count for loop in loops if loop]
    one = _as_one(spread, trip_counts) if len(spread) > 1 else None
    result = tuple(spread) if one is None else (one,)
    return result if _keeps_order(result) else None


def stored_params(groups: Sequence[ProgramGroup]) -> frozenset[int]:
    """Return the parameters that the groups store to."""
    return frozenset(
        command.dest.param
        for group in groups
        for command in walk(group.body)
        if isinstance(command, DmaWrite)
    )


def _persistent_loop(body: tuple[Command, ...]) -> Loop | None:
    """Return the only loop of a group, if nothing but scalars is computed outside of it."""
    *before, loop = body or (None,)
    if not isinstance(loop, Loop) or loop.carried or loop.trip_count < 1:
        return None
    if not all(
        isinstance(dma_read, DmaRead | Math) and not dma_read.dst.shape for dma_read in before
    ):
        return None
    inner = list(walk(loop.body))
    if not all(
        isinstance(dma_read, DmaRead | DmaWrite | Gemm | Math | Reduce | Loop) for dma_read in inner
    ):
        return None
    loaded = {read.source.param for read in [*before, *inner] if isinstance(read, DmaRead)}
    stored = [dma_read.dest.param for dma_read in inner if isinstance(dma_read, DmaWrite)]
    directly = sum(isinstance(dma_read, DmaWrite) for dma_read in loop.body)
    return loop if len(stored) == directly and loaded.isdisjoint(stored) else None


def _keeps_order(groups: Sequence[ProgramGroup]) -> bool:
    """Return whether the order of different stores does not matter.

    One store per parameter keeps the order of its programs; several must write disjoint bytes.
    """
    stores: dict[int, list[DmaWrite]] = {}
    for group in groups:
        for command in group.body:
            if isinstance(command, DmaWrite):
                stores.setdefault(command.dest.param, []).append(command)
    programs = {id(c): len(group.program_ids) for group in groups for c in group.body}
    return all(
        len(several) == len(groups) == 1
        or _go_to_other_bytes([(dma_write, programs[id(dma_write)]) for dma_write in several])
        for several in stores.values()
    )


def _go_to_other_bytes(stores: list[tuple[DmaWrite, int]]) -> bool:
    """Return whether stores of this many programs each write no byte twice."""
    places: list[Array] = []
    for store, programs in stores:
        shape = (programs, *store.dest.shape)
        if store.dest.gather is not None or isinstance(store.mask, Tile):
            return False
        if math.prod(shape) > _MOST_ELEMENTS:
            return False
        dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(shape) - 1)))
        offsets = np.broadcast_to(store.dest.offset.dense(dims), shape)
        places.append(offsets[np.broadcast_to(store.mask.dense(dims), shape)])
    size = stores[0][0].dest.dtype.itemsize
    if any(store.dest.dtype.itemsize != size for store, _ in stores):
        return False
    every = np.concatenate(places)
    if not every.size:
        return True
    elements, rest = np.divmod(every - every.min(), size)
    if rest.any() or elements.max() > 4 * _MOST_ELEMENTS:
        return False
    return int(np.bincount(elements).max()) == 1


def _spread(group: ProgramGroup, loop: Loop) -> ProgramGroup:
    """Return the group whose programs are the iterations: all first ones, then all second ones."""
    count, dim = len(group.program_ids), loop_dim(loop.loop_id)

    def spread(tensor: Known) -> Known:
        terms: dict[Dims, Array] = {}
        for dims, array in tensor.terms.items():
            if PROGRAM in dims or dim in dims:
                rest: Dims = tuple(item for item in dims if item not in (PROGRAM, dim))
                full: Array = aligned(array, dims, (PROGRAM, dim, *rest))
                full = np.broadcast_to(full, (count, loop.trip_count, *full.shape[2:]))
                array = full.swapaxes(0, 1).reshape(count * loop.trip_count, *full.shape[2:])
                dims = (PROGRAM, *rest)
                if dims in terms:
                    array = terms[dims] & array if array.dtype == np.bool_ else terms[dims] + array
            terms[dims] = array
        return _of_terms(tensor, terms)

    body = with_known((*group.body[:-1], *loop.body), spread)
    return ProgramGroup(np.tile(group.program_ids, loop.trip_count), body)


def _of_terms(tensor: Known, terms: dict[Dims, Array]) -> Known:
    if isinstance(tensor, Separable):
        return Separable(tensor.shape, tensor.const, terms)
    return Predicate(tensor.shape, terms)


def _as_one(groups: Sequence[ProgramGroup], trip_counts: list[int]) -> ProgramGroup | None:
    """Return the groups joined, or None if they differ in more than addresses and masks.

    Its programs are ordered as in one group: by iteration, then by the original program.
    """
    first = groups[0]
    loops = [_loops(group.body) for group in groups]
    if any(len(loop) != len(loops[0]) for loop in loops):
        return None
    bodies = [
        with_known(group.body, _renaming(dict(zip(own, loops[0], strict=True))))
        for group, own in zip(groups, loops, strict=True)
    ]
    if not all(_alike(first.body, body, {}) for body in bodies):
        return None
    counts = [len(group.program_ids) for group in groups]
    ids = np.concatenate([group.program_ids for group in groups])
    turns = [
        np.repeat(np.arange(trips), count // trips)
        for trips, count in zip(trip_counts, counts, strict=True)
    ]
    order = np.lexsort((ids, np.concatenate(turns)))
    return ProgramGroup(ids[order], Joining(counts, order).values(bodies))


def _loops(body: tuple[Command, ...]) -> list[int]:
    """Return the dims of the loops of a body. Groups number theirs in the order of the text."""
    return [loop_dim(node.loop_id) for node in walk(body) if isinstance(node, Loop)]


def _renaming(names: dict[int, int]) -> Callable[[Any], Any]:
    def rename(tensor: Known) -> Known:
        terms = {tuple(names.get(d, d) for d in dims): a for dims, a in tensor.terms.items()}
        return _of_terms(tensor, terms)

    return rename


def _alike(a: Any, b: Any, tiles: dict[int, int]) -> bool:
    """Return whether two bodies differ at most in addresses, masks, and ids of tiles and loops."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Separable | Predicate):
        return bool(a.shape == b.shape)
    if isinstance(a, Tile):
        same = (a.shape, a.dtype) == (b.shape, b.dtype)
        return same and tiles.setdefault(a.slot, b.slot) == b.slot
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_alike(x, y, tiles) for x, y in zip(a, b, strict=True))
    if isinstance(a, DType | SourceLine) or not dataclasses.is_dataclass(a):
        return repr(a) == repr(b)
    names = (field.name for field in dataclasses.fields(a) if field.name != "loop_id")
    return all(_alike(getattr(a, name), getattr(b, name), tiles) for name in names)
