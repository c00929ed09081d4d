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
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Command,
    Dims,
    DmaRead,
    DmaWrite,
    Gemm,
    IndexTile,
    Loop,
    MaskTile,
    Math,
    Predicate,
    ProgramGroup,
    Reduce,
    Separable,
    SourceLine,
    Splat,
    Tile,
    aligned,
    axis_dim,
    conjunction,
    constant,
    fold_terms,
    loop_dim,
    walk,
)
from kernbench.dtypes import Array, DType, bool_

Known = TypeVar("Known", Separable, Predicate)
Part = TypeVar("Part")


def with_known(value: Part, change: Callable[[Any], Any]) -> Part:
    """Return a command, or parts of one, with ``change`` applied to integer and boolean tensors.

    Tiles are kept, and unchanged parts remain the same objects.
    """
    if isinstance(value, Separable | Predicate):
        return change(value)  # type: ignore[no-any-return]
    if isinstance(value, tuple):
        changed = tuple(with_known(item, change) for item in value)
        is_same = all(map(operator.is_, changed, value))
        return value if is_same else changed  # type: ignore[return-value]
    if isinstance(value, Tile | DType | SourceLine) or not dataclasses.is_dataclass(value):
        return value
    changes = {}
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        after = with_known(before, change)
        if after is not before:
            changes[field.name] = after
    return dataclasses.replace(value, **changes) if changes else value  # type: ignore[type-var]


class NotAlikeError(Exception):
    """Groups differ in more than what phase 1 knows."""


class Joining:
    """Joins the commands of several groups of programs into those of one group.

    ``counts`` are the numbers of programs, and ``order`` are the positions of all programs, one
    group after another, in the joined group.
    """

    def __init__(self, counts: list[int], order: Array) -> None:
        self.counts, self.order = counts, order

    def values(self, parts: list[Any]) -> Any:
        """Return commands (or parts of them) of all groups joined; tiles are those of the first.

        Raises:
            NotAlikeError: Their :func:`outline` differs.
        """
        first = parts[0]
        kind = type(first)
        if isinstance(first, Splat) and all(part == first for part in parts[1:]):
            return first
        if isinstance(first, Splat | IndexTile | MaskTile):
            return self._operand(parts)
        if any(type(part) is not kind for part in parts):
            raise NotAlikeError
        if isinstance(first, Separable):
            return self._numbers(parts)
        if isinstance(first, Predicate):
            return self._flags(parts)
        if isinstance(first, tuple):
            if any(len(part) != len(first) for part in parts):
                raise NotAlikeError
            return tuple(self.values(list(pair)) for pair in zip(*parts, strict=True))
        if isinstance(first, Tile | DType | SourceLine) or not dataclasses.is_dataclass(first):
            return first
        changes = {
            field.name: self.values([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(first)
        }
        return dataclasses.replace(first, **changes)  # type: ignore[type-var]

    def _operand(self, parts: list[Any]) -> Splat | IndexTile | MaskTile:
        """Return a joined operand that phase 1 knows in all groups, in some as a constant."""
        first: Splat | IndexTile | MaskTile = parts[0]
        kind, *others = {_known_kind(part) for part in parts}
        if others:
            raise NotAlikeError
        if isinstance(first, MaskTile) or kind is bool:
            return MaskTile(self._flags([_as_flags(part) for part in parts]))
        if kind is int:
            return IndexTile(self._numbers([_as_numbers(part) for part in parts]), first.dtype)
        return first

    def _numbers(self, parts: list[Separable]) -> Separable:
        terms: dict[Dims, Array] = {}
        for dims in dict.fromkeys(dims for part in parts for dims in part.terms):
            zero = np.zeros((), dtype=np.int64)
            self._add(terms, dims, [part.terms.get(dims, zero) for part in parts])
        consts = [np.array(part.const, dtype=np.int64) for part in parts]
        if any(part.const != parts[0].const for part in parts):
            self._add(terms, (), consts)
            return fold_terms(parts[0].shape, 0, terms)
        return fold_terms(parts[0].shape, parts[0].const, terms)

    def _flags(self, parts: list[Predicate]) -> Predicate:
        terms: dict[Dims, Array] = {}
        for dims in dict.fromkeys(dims for part in parts for dims in part.terms):
            true = np.ones((), dtype=np.bool_)
            self._add(terms, dims, [part.terms.get(dims, true) for part in parts])
        return conjunction(parts[0].shape, terms)

    def _add(self, terms: dict[Dims, Array], dims: Dims, arrays: list[Array]) -> None:
        """Add the groups' arrays of one term to the joined one, per program if they differ."""
        by_program = bool(dims) and dims[0] == PROGRAM
        if not by_program and all(np.array_equal(item, arrays[0]) for item in arrays):
            target, array = dims, arrays[0]
        else:
            rest = dims[1:] if by_program else dims
            shape = np.broadcast_shapes(
                *(item.shape[1:] if by_program and item.ndim else item.shape for item in arrays)
            )
            rows = [
                np.broadcast_to(item if by_program and item.ndim else item[None], (count, *shape))
                for item, count in zip(arrays, self.counts, strict=True)
            ]
            target, array = (PROGRAM, *rest), np.concatenate(rows)[self.order]
        if target not in terms:
            terms[target] = array
        elif array.dtype == np.bool_:
            terms[target] = terms[target] & array
        else:
            terms[target] = terms[target] + array


def outline(value: Any) -> Any:
    """Return what groups must have in common to be joined: all but what phase 1 knows."""
    if isinstance(value, Splat | IndexTile | MaskTile):
        return _known_kind(value)
    if isinstance(value, tuple):
        return tuple(map(outline, value))
    leaf = isinstance(value, Separable | Predicate | Tile | DType | SourceLine)
    if leaf or not dataclasses.is_dataclass(value):
        return type(value)
    fields = (outline(getattr(value, field.name)) for field in dataclasses.fields(value))
    return (type(value), *fields)


def _known_kind(operand: Any) -> Any:
    """Return what known operands must have in common so that one can represent all programs.

    A float is a constant of the kernel's text: it cannot differ between programs.
    """
    if isinstance(operand, MaskTile):
        return bool
    if isinstance(operand, IndexTile):
        return int
    if not isinstance(operand, Splat):
        return type(operand)
    if operand.dtype.is_floating_point:
        return repr(operand.value)
    return bool if operand.dtype is bool_ else int


def _as_numbers(operand: Splat | IndexTile) -> Separable:
    if isinstance(operand, IndexTile):
        return operand.values
    return Separable(operand.shape, int(operand.value))


def _as_flags(operand: Splat | MaskTile) -> Predicate:
    if isinstance(operand, MaskTile):
        return operand.values
    return constant(bool(operand.value), operand.shape)


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
    loops = [
        [loop_dim(node.loop_id) for node in walk(group.body) if isinstance(node, Loop)]
        for group in groups
    ]
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
