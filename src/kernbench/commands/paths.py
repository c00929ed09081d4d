"""Groups of programs with different trip counts, split into groups in which all agree.

A loop whose bounds depend on the program is planned once, for the program that goes around it most
often (docs/model/kernels.md). What a program with fewer iterations does is the same commands with
their terms cut off where its iterations end.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np

from kernbench.commands.separable import (
    PROGRAM,
    Dims,
    Predicate,
    Separable,
    conjunction,
    fold_terms,
    is_loop,
    loop_dim,
)
from kernbench.commands.trace import (
    Command,
    IndexTile,
    KernelTrace,
    Loop,
    MaskTile,
    Param,
    ProgramGroup,
    SourceLine,
    Splat,
    Tile,
)
from kernbench.dtypes import Array, DType, bool_

# A memo, not state: a function of the trace alone that dies with it.
_BY_PATH: weakref.WeakKeyDictionary[KernelTrace, KernelTrace] = weakref.WeakKeyDictionary()


def by_path(trace: KernelTrace) -> KernelTrace:
    """Return the same launch with a group for each path: no group of it has ``trips``.

    Groups are in order of their first program, and tiles of different groups are different tiles.
    """
    if not any(group.trips for group in trace.groups):
        return trace
    path = _BY_PATH.get(trace)
    if path is None:
        groups: list[ProgramGroup] = []
        num_slots = trace.num_slots
        for group in trace.groups:
            for index, positions in enumerate(paths(group)):
                first = num_slots if index else 0
                body = path_body(group, positions, first)
                groups.append(ProgramGroup(group.program_ids[positions], body))
                num_slots += trace.num_slots if index else 0
        groups.sort(key=lambda program_group: int(program_group.program_ids[0]))
        path = dataclasses.replace(trace, groups=tuple(groups), num_slots=num_slots)
        _BY_PATH[trace] = path
    return path


def without_met_masks(group: ProgramGroup) -> ProgramGroup:
    """Return the group without masks that hold in all iterations that its programs do.

    A loop's bounds are often said twice: by its range, and by a mask that each program leaves the
    loop before it could fail.
    """
    if not group.trips:
        return group
    body: tuple[Command, ...] = _Met(group).value(group.body)
    return dataclasses.replace(group, body=body)


def paths(group: ProgramGroup) -> list[Array]:
    """Return the positions of the programs of each path, paths in order of their first program."""
    _, path_of = path_numbers(group)
    order = np.argsort(path_of, kind="stable")
    bounds = np.flatnonzero(np.diff(path_of[order])) + 1
    return np.split(order, bounds)


def path_numbers(group: ProgramGroup) -> tuple[dict[int, Array], Array]:
    """Return how often each path goes around each loop of ``trips``, and the path of each program.

    Paths are numbered in order of their first program.
    """
    count = len(group.program_ids)
    if not group.trips:
        return {}, np.zeros(count, dtype=np.int64)
    rows = np.stack([counts for _, counts in group.trips], axis=1)
    codes = np.zeros(count, dtype=np.int64)
    for column in rows.T:
        values, which = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * len(values) + which.reshape(-1), return_inverse=True)
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    leaders = np.sort(first)
    counts = {loop_id: array[leaders] for loop_id, array in group.trips}
    return counts, rank[codes.reshape(-1)]


def path_body(group: ProgramGroup, positions: Array, first_slot: int = 0) -> tuple[Command, ...]:
    """Return what the programs at ``positions``, all of one path, do.

    Tiles are new ones, their slots counted from ``first_slot`` on.
    """
    counts = {loop_id: int(array[positions[0]]) for loop_id, array in group.trips}
    body: tuple[Command, ...] = _Cut(positions, counts, first_slot).value(group.body)
    return body


def first_body(group: ProgramGroup) -> tuple[Command, ...]:
    """Return what the first program of a group without ``trips`` does, as far as it is its own.

    Terms of loops and axes stay the same arrays.
    """
    body: tuple[Command, ...] = _First(np.zeros(1, dtype=np.int64), {}, 0).value(group.body)
    return body


_AS_THEY_ARE = frozenset({int, float, bool, str, dict, type(None), DType, SourceLine, Splat, Param})
"""Types of what is the same for all programs."""


class _Cut:
    """Restricts commands to some programs, and to the first iterations of some loops."""

    def __init__(self, positions: Array, counts: dict[int, int], first_slot: int) -> None:
        self._positions = positions
        self._counts = counts
        self._lengths = {loop_dim(loop_id): count for loop_id, count in counts.items()}
        self._first_slot = first_slot
        self._tiles: dict[int, Tile] = {}

    def value(self, value: Any) -> Any:
        """Return a command, an operand, or a tuple of either, cut."""
        if type(value) in _AS_THEY_ARE:
            return value
        if isinstance(value, tuple):
            return tuple(map(self.value, value))
        if isinstance(value, Tile):
            return self._tile(value)
        if isinstance(value, Separable):
            return self._numbers(value)
        if isinstance(value, Predicate):
            return self._flags(value)
        if isinstance(value, IndexTile):
            numbers = self._numbers(value.values)
            if numbers.is_uniform:
                return Splat(numbers.const, numbers.shape, value.dtype)
            return IndexTile(numbers, value.dtype)
        if isinstance(value, MaskTile):
            flags = self._flags(value.values)
            return Splat(flags.is_true, flags.shape, bool_) if flags.is_uniform else MaskTile(flags)
        names = field_names(value)
        if not names:
            return value
        parts = {name: self.value(getattr(value, name)) for name in names}
        if isinstance(value, Loop):
            parts["trip_count"] = self._counts.get(value.loop_id, value.trip_count)
        return type(value)(**parts)

    def _tile(self, tile: Tile) -> Tile:
        result = self._tiles.get(tile.slot)
        if result is None:
            result = Tile(self._first_slot + tile.slot, tile.shape, tile.dtype)
            self._tiles[tile.slot] = result
        return result

    def _numbers(self, tensor: Separable) -> Separable:
        const = tensor.const
        terms: dict[Dims, Array] = {}
        for dims, array in tensor.terms.items():
            dims, array = self._term(dims, array)
            if not dims:
                const += int(array)
            else:
                terms[dims] = terms[dims] + array if dims in terms else array
        return fold_terms(tensor.shape, const, terms)

    def _flags(self, tensor: Predicate) -> Predicate:
        terms: dict[Dims, Array] = {}
        for dims, array in tensor.terms.items():
            dims, array = self._term(dims, array)
            terms[dims] = terms[dims] & array if dims in terms else array
        return conjunction(tensor.shape, terms)

    def _term(self, dims: Dims, array: Array) -> tuple[Dims, Array]:
        """Cut one term, and drop the programs and the loops that it no longer varies over."""
        kept: list[int] = []
        for dim in dims:
            where = len(kept)
            length = self._lengths.get(dim)
            if dim == PROGRAM:
                array = array[self._positions] if len(array) > 1 else array
            elif length is not None:
                array = array[(slice(None),) * where + (slice(length),)]
            elif not is_loop(dim):
                kept.append(dim)
                continue
            first = array.take([0], axis=where)
            if array.shape[where] == 1 or bool((array == first).all()):
                array = array.take(0, axis=where)
            else:
                kept.append(dim)
        return tuple(kept), array


class _First(_Cut):
    """Restricts commands to the first program, and leaves loops and tiles as they are."""

    def _tile(self, tile: Tile) -> Tile:
        return tile

    def _term(self, dims: Dims, array: Array) -> tuple[Dims, Array]:
        return (dims[1:], array[0]) if dims and dims[0] == PROGRAM else (dims, array)


class _Met(_First):
    """Lets masks hold, too, in iterations that a program does not do."""

    def __init__(self, group: ProgramGroup) -> None:
        super().__init__(np.arange(len(group.program_ids)), {}, 0)
        self._trips = {loop_dim(loop_id): counts for loop_id, counts in group.trips}

    def _term(self, dims: Dims, array: Array) -> tuple[Dims, Array]:
        for where, dim in enumerate(dims):
            if array.dtype == np.bool_ and dims[0] == PROGRAM and dim in self._trips:
                shape = [1] * array.ndim
                shape[0], shape[where] = -1, array.shape[where]
                undone = np.arange(array.shape[where]) >= self._trips[dim][:, None]
                array = array | undone.reshape(shape)
        return dims, array


def field_names(value: object) -> tuple[str, ...]:
    """Return the names of a record's fields, none of what is no record."""
    # As ``dataclasses.fields``, which takes five times as long.
    return tuple(getattr(value, "__dataclass_fields__", ()))
