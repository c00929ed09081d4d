"""The bytes that the active lanes of an access touch, and the programs of these lanes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PROGRAM,
    Dims,
    Predicate,
    Separable,
    Tile,
    aligned,
    axis_dim,
    is_loop,
    union,
)
from kernbench.dtypes import Array
from kernbench.memory import Buffer
from kernbench.replay import AccessSite, Frame

Spans = npt.NDArray[np.int64]
"""``[n, 2]``: the first byte of every range, and the one after its last."""

NO_SPANS: Spans = np.empty((0, 2), np.int64)


def flagged_spans(flags: Array, low: int = 0, unit: int = 1) -> Spans:
    """Return the ranges where a map is true; each entry is ``unit`` bytes, starting at ``low``.

    >>> flagged_spans(np.array([True, True, False, True]), low=100, unit=4).tolist()
    [[100, 108], [112, 116]]
    """
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return low + unit * edges.reshape(-1, 2).astype(np.int64)


def first_common(a: Spans, b: Spans) -> int | None:
    """Return the first byte that two sets share, or None."""
    if not len(a) or not len(b):
        return None
    # Of every range of one, the first of the other that ends behind its start.
    at = np.searchsorted(b[:, 1], a[:, 0], side="right")
    inside = at < len(b)
    starts = np.maximum(a[inside, 0], b[at[inside], 0])
    shared = starts < a[inside, 1]
    return int(starts[shared][0]) if shared.any() else None


def covers(a: Spans, b: Spans) -> bool:
    """Return whether a set contains every byte of another."""
    if not len(b):
        return True
    at = np.searchsorted(a[:, 1], b[:, 0], side="right")
    if at[-1] >= len(a):
        return False
    return bool(((a[at, 0] <= b[:, 0]) & (b[:, 1] <= a[at, 1])).all())


def strided_spans(offset: int, shape: Sequence[int], strides: Sequence[int], size: int) -> Spans:
    """Return the bytes of a tensor; offset and strides in elements of ``size`` bytes."""
    if 0 in shape:
        return NO_SPANS
    run, others = 1, []
    for stride, count in sorted(zip(strides, shape, strict=True)):
        if stride == run:
            run *= count
        elif count > 1:
            others.append(stride * np.arange(count))
    if not others:
        return np.array([[offset * size, (offset + run) * size]])
    low, flags = _sums(run, others)
    return flagged_spans(flags, (offset + low) * size, size)


def access_spans(offset: Separable, mask: Predicate, itemsize: int) -> Spans:
    """Return the bytes that active lanes of all programs touch, relative like ``offset``."""
    steps = [int(np.gcd.reduce(term, axis=None)) for term in offset.terms.values()]
    unit = math.gcd(itemsize, offset.const, *steps)
    parts = [_sums(itemsize // unit, sets) for sets in _classes(offset, mask, unit)]
    if not parts:
        return NO_SPANS
    low = min(part_low for part_low, _ in parts)
    high = max(part_low + len(flags) for part_low, flags in parts)
    total: Array = np.zeros(high - low, np.bool_)
    for part_low, flags in parts:
        total[part_low - low : part_low - low + len(flags)] |= flags
    return flagged_spans(total, offset.const + unit * low, unit)


def _classes(offset: Separable, mask: Predicate, unit: int) -> Iterator[list[Array]]:
    """Yield, for programs that differ by no more than a distance, the sets that add up."""
    whole = {dims: array // unit for dims, array in offset.terms.items()}
    shifts = whole.pop((PROGRAM,), np.zeros(1, np.int64))
    by_program = [
        array for terms in (whole, mask.terms) for dims, array in terms.items() if PROGRAM in dims
    ]
    count = max((len(array) for array in (shifts, *by_program)), default=1)
    shifts = np.broadcast_to(shifts, (count,))
    rows = [
        np.broadcast_to(array, (count, *array.shape[1:])).reshape(count, -1) for array in by_program
    ]
    alike = np.zeros(count, np.intp)
    first = np.zeros(1, np.intp)
    if rows:
        _, first, alike = np.unique(
            np.concatenate(rows, axis=1, dtype=np.int64),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
    for number, program in enumerate(first.tolist()):
        sets = [np.unique(shifts[alike.reshape(-1) == number])]
        sets += _components(
            [(dims, _of_program(array, dims, program)) for dims, array in whole.items()],
            [(dims, _of_program(array, dims, program)) for dims, array in mask.terms.items()],
        )
        if all(len(array) for array in sets):
            yield sets


def _of_program(array: Array, dims: Dims, program: int) -> Array:
    return array[min(program, len(array) - 1)] if PROGRAM in dims else array


def _components(
    offsets: list[tuple[Dims, Array]], masks: list[tuple[Dims, Array]]
) -> Iterator[Array]:
    """Yield the numbers of every group of terms that share no dim with the others."""
    factors = [
        (tuple(dim for dim in dims if dim != PROGRAM), array, is_mask)
        for is_mask, terms in enumerate((offsets, masks))
        for dims, array in terms
    ]
    while factors:
        dims = factors[0][0]
        while (wider := union(dims, *(d for d, _, _ in factors if set(d) & set(dims)))) != dims:
            dims = wider
        mine = [factor for factor in factors if factor[0] == dims or set(factor[0]) & set(dims)]
        factors = [factor for factor in factors if not any(factor is one for one in mine)]
        numbers = np.zeros((1,) * len(dims), np.int64)
        active = np.ones((1,) * len(dims), np.bool_)
        for own, array, is_mask in mine:
            if is_mask:
                active = active & aligned(array, own, dims)
            else:
                numbers = numbers + aligned(array, own, dims)
        numbers, active = np.broadcast_arrays(numbers, active)
        yield np.unique(numbers[active])


def _sums(length: int, sets: list[Array]) -> tuple[int, Array]:
    """Return the map of all sums of one number per set, each ``length`` long, and its start."""
    low = 0
    flags: Array = np.ones(length, np.bool_)
    for numbers in sorted(sets, key=lambda array: int(array.max()) - int(array.min())):
        least = int(numbers.min())
        low += least
        places = np.unique(numbers - least)
        wider: Array = np.zeros(len(flags) + int(places[-1]), np.bool_)
        true = np.flatnonzero(flags)
        if len(true) <= len(places):
            for number in true.tolist():
                wider[places + number] = True
        else:
            for place in places.tolist():
                wider[place : place + len(flags)] |= flags
        flags = wider
    return low, flags


_KEPT_BYTES = 64 << 20


class Lanes(NamedTuple):
    """Active lanes, in program order."""

    where: Array
    """First byte in the buffer."""
    positions: Array
    """Position in ``[programs of the chunk, *tile]``, flat."""
    programs: Array
    """Linear id of the program."""


class LaneFinder:
    """Finds the active lanes of one access, and keeps those that do not depend on data."""

    def __init__(self, site: AccessSite) -> None:
        self.site = site
        self._dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(site.access.shape))))
        self._per_program = max(int(np.prod(site.access.shape, dtype=np.int64)), 1)
        self.is_known = site.access.gather is None and not isinstance(site.mask, Tile)
        dims = {*site.access.offset.dims, *site.predicate.dims}
        self._loops = [dim - 1 for dim in dims if is_loop(dim)]
        self._kept: dict[Any, Lanes] = {}
        self._kept_bytes = 0
        self._overlap: dict[Any, bool] = {}
        self._found: Lanes | None = None

    def forget(self, frame: Frame) -> None:
        """The step after which lanes are found anew: they are of one execution of an access."""
        self._found = None

    def find(self, frame: Frame) -> Lanes:
        """Return the active lanes, which are inside the buffer; kept until :meth:`forget`.

        Raises:
            OutOfBoundsError: They are not, and that is not allowed.
        """
        if self._found is None:
            self._found = self._find(frame)
        return self._found

    def _find(self, frame: Frame) -> Lanes:
        site = self.site
        relative = self._relative(frame)
        where = relative.where + frame.origin[site.param]
        size = len(frame.memory[site.param])
        if len(where) and (where.min() < 0 or where.max() + site.itemsize > size):
            if site.is_store or frame.outside is None:
                raise site.out_of_bounds(frame)
            inside = (where >= 0) & (where + site.itemsize <= size)
            return Lanes(where[inside], relative.positions[inside], relative.programs[inside])
        return Lanes(where, relative.positions, relative.programs)

    def _relative(self, frame: Frame) -> Lanes:
        """Return the lanes with bytes relative to the parameter's address."""
        if not self.is_known:
            return self._compute(frame)
        key = self._key(frame)
        relative = self._kept.get(key)
        if relative is None:
            relative = self._compute(frame)
            size = sum(array.nbytes for array in relative)
            if self._kept_bytes + size <= _KEPT_BYTES:
                self._kept[key] = relative
                self._kept_bytes += size
        return relative

    def _key(self, frame: Frame) -> Any:
        """Return the key that known lanes depend on."""
        return (frame.chunk, *[frame.iterations[loop] for loop in self._loops])

    def overlapping(self, frame: Frame) -> Lanes | None:
        """Return the active lanes if two of them touch the same byte, otherwise None."""
        if not self.is_known:
            position = self.find(frame)
            return position if _have_common_bytes(position.where, self.site.itemsize) else None
        key = self._key(frame)
        overlap = self._overlap.get(key)
        if overlap is None:
            where = self._relative(frame).where
            overlap = self._overlap[key] = _have_common_bytes(where, self.site.itemsize)
        return self.find(frame) if overlap else None

    def _compute(self, frame: Frame) -> Lanes:
        site = self.site
        offsets, active = site.dense(frame)
        shape = (frame.num_programs, *site.access.shape)
        where = np.broadcast_to(offsets, shape).reshape(-1)
        where = where + (site.origin(frame) - frame.origin[site.param])
        if active.all():
            positions: Array = np.arange(len(where))
        else:
            positions = np.flatnonzero(np.broadcast_to(active, shape))
            where = where[positions]
        chunks = site.chunks
        first, last = chunks.bounds[frame.chunk : frame.chunk + 2]
        programs = chunks.program_ids[first:last][positions // self._per_program]
        return Lanes(where, positions, programs)

    def active(self, frame: Frame) -> Array:
        """Return the activity of all lanes, ``[programs, *tile]`` with length 1 where constant."""
        site = self.site
        if isinstance(site.mask, Tile):
            return np.asarray(frame.values[site.mask.slot])
        return site.at(site.predicate, frame).dense(self._dims)

    def program(self, frame: Frame, position: int) -> tuple[int, int, int]:
        """Return the grid coordinates of the program that owns a flat position."""
        chunks = self.site.chunks
        return chunks.program(chunks.bounds[frame.chunk] + position // self._per_program)

    def pick(self, shadow: Array, frame: Frame, positions: Array) -> Array:
        """Return the elements of a shadow or a value at flat positions."""
        shape = (frame.num_programs, *self.site.access.shape)
        return np.asarray(np.broadcast_to(shadow, shape).reshape(-1)[positions])

    def buffer(self, frame: Frame) -> Buffer:
        return frame.pointers[self.site.param].buffer


def _have_common_bytes(where: Array, itemsize: int) -> bool:
    if (where[1:] - where[:-1] >= itemsize).all():
        return False
    ordered = np.sort(where)
    return bool((ordered[1:] - ordered[:-1] < itemsize).any())


def mark_written(written: Array, where: Array, itemsize: int) -> None:
    """Count ``itemsize`` bytes at each of ``where`` as written."""
    words = _words(written, where, itemsize)
    if words is not None:
        words[where // itemsize] = np.iinfo(words.dtype).max
        return
    for byte in range(itemsize):
        written[where + byte] = 255


def unwritten_lanes(written: Array, where: Array, itemsize: int) -> Array | None:
    """Return which accesses touch an unwritten byte, or None if none does."""
    words = _words(written, where, itemsize)
    if words is not None:
        missing = words[where // itemsize] != np.iinfo(words.dtype).max
    else:
        missing = np.zeros(len(where), np.bool_)
        for byte in range(itemsize):
            missing |= written[where + byte] == 0
    return missing if missing.any() else None


def _words(written: Array, where: Array, itemsize: int) -> Array | None:
    """Return the counts as whole elements, or None if accesses are not aligned to them."""
    if len(written) % itemsize or (where % itemsize).any():
        return None
    return written.view(f"u{itemsize}")
