"""Which bytes a load or store accesses, computed once: strided boxes and element indices.

An access of a chunk of programs is cut into *parts*. A :class:`Box` is a rectangle of consecutive
programs that one strided view covers; a :class:`Stretch` are elements that follow each other and
that one covers, across programs; :class:`Indices` are elements that are less regular. Offsets are
relative to the parameter's address, so that geometries do not depend on pointers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kernbench.commands import PROGRAM, Predicate, Separable, axis_dim, axis_of, is_axis, num_axes
from kernbench.dtypes import Array

Steps = tuple[tuple[int, int], ...]
"""Nested counts and byte strides, outermost first."""

_MAX_LEVELS = 3
_SMALL_PART = 512
"""The number of elements below which many strided copies cost more than one gather."""


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Consecutive programs times a rectangle of the tile, as one strided view.

    ``where`` are the slices of the value ``[programs, *tile]`` that it covers, ``offset`` the byte
    of its first element, ``view_shape`` and ``view_strides`` the memory. ``merged`` is the shape of
    the same elements with one program axis.
    """

    where: tuple[slice, ...]
    offset: int
    view_shape: tuple[int, ...]
    view_strides: tuple[int, ...]
    merged: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Elements ``first`` to ``first + size`` of the flat value, as one strided view.

    Kernels that number all elements and divide have such: a transposition is a few.
    """

    first: int
    size: int
    offset: int
    view_shape: tuple[int, ...]
    view_strides: tuple[int, ...]

    def offsets(self) -> Array:
        """Return the byte of each element."""
        reshape: Array = np.full((1,) * len(self.view_shape), self.offset, dtype=np.int64)
        for axis, (count, stride) in enumerate(
            zip(self.view_shape, self.view_strides, strict=True)
        ):
            steps = np.arange(count) * stride
            reshape = reshape + steps.reshape(
                [-1 if at == axis else 1 for at in range(reshape.ndim)]
            )
        return reshape.reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Indices:
    """Elements in any pattern: flat ``positions`` in the value, byte ``offsets`` from ``low``.

    ``elements`` are the offsets divided by the item size, or None if they do not divide.
    """

    positions: Array
    offsets: Array
    elements: Array | None
    low: int
    high: int


Part = Box | Stretch | Indices


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """All parts of one access, in program order. ``lead`` is 1 if programs do not differ."""

    lead: int
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    whole: Box | None
    """The only part, if it is one plain view of every element."""
    covers: bool
    """Whether the parts contain every element of the value."""
    size_bytes: int
    """Its approximate size, for caches of geometries."""


def build_geometry(
    offset: Separable,
    mask: Predicate,
    itemsize: int,
    num_programs: int,
    *,
    ordered: bool,
    narrow: bool,
) -> Geometry:
    """Return the parts that the active elements of ``offset`` form.

    Args:
        offset: Byte offsets over the programs of one chunk and the tile's axes.
        mask: Where elements are active, over the same dims.
        itemsize: Bytes per element.
        num_programs: Programs in the chunk.
        ordered: Elements may be written more than once, so that parts must not overlap
            themselves (a store).
        narrow: An axis along which all elements are equal may have length 1 (a load).
    """
    shape = offset.shape
    varies = any(PROGRAM in d for d in (*offset.terms, *mask.terms))
    lead = num_programs if varies else 1
    pattern = _Pattern(offset, mask, itemsize, lead, shape, narrow)
    parts = pattern.parts()
    if ordered:
        parts = [_ordered(part, pattern) for part in parts]
    whole = None
    full = (lead, *pattern.value_shape)
    if len(parts) == 1 and isinstance(parts[0], Box):
        box = parts[0]
        if box.merged == full == box.view_shape:
            whole = box
    size = 1024 + sum(
        part.offsets.nbytes * (1 if part.elements is None else 2) + part.positions.nbytes
        for part in parts
        if isinstance(part, Indices)
    )
    covers = sum(map(_num_elements, parts)) == int(np.prod(full, dtype=np.int64))
    return Geometry(lead, full, tuple(parts), whole, covers, size)


def _num_elements(part: Part) -> int:
    if isinstance(part, Box):
        return int(np.prod(part.merged))
    return part.size if isinstance(part, Stretch) else len(part.positions)


class _Pattern:
    """The programs of a chunk, each with a base, a rectangle, and whether it is regular."""

    def __init__(
        self,
        offset: Separable,
        mask: Predicate,
        itemsize: int,
        lead: int,
        shape: tuple[int, ...],
        narrow: bool,
    ) -> None:
        self.offset, self.mask, self.itemsize = offset, mask, itemsize
        self.lead, self.shape = lead, shape
        rank = len(shape)
        self.low = np.zeros((lead, rank), dtype=np.int64)
        self.high = np.broadcast_to(np.asarray(shape, dtype=np.int64), (lead, rank)).copy()
        self.active = np.ones(lead, dtype=np.bool_)
        self.regular = np.ones(lead, dtype=np.bool_)
        self.base = np.full(lead, offset.const, dtype=np.int64)
        self.strides = [0] * rank
        self.value_shape = shape
        self._read_mask()
        self._read_offset()
        if narrow:
            touched = {
                axis_of(d) for dims in (*offset.terms, *mask.terms) for d in dims if is_axis(d)
            }
            self.value_shape = tuple(n if axis in touched else 1 for axis, n in enumerate(shape))
            self.high = np.minimum(self.high, self.value_shape)

    def _read_mask(self) -> None:
        for dims, array in self.mask.terms.items():
            if num_axes(dims) > 1:
                self.regular[:] = False
            elif num_axes(dims) == 0:
                self.active &= array
            else:
                axis = axis_of(dims[-1])
                full = np.broadcast_to(array, (*array.shape[:-1], self.shape[axis]))
                low, high, solid = _runs(full.reshape(-1, self.shape[axis]))
                self.low[:, axis] = np.maximum(self.low[:, axis], low)
                self.high[:, axis] = np.minimum(self.high[:, axis], high)
                self.regular &= solid
        if len(self.shape):
            self.active &= (self.high > self.low).all(axis=1)

    def _read_offset(self) -> None:
        by_axis: dict[int, Array] = {}
        for dims, array in self.offset.terms.items():
            if num_axes(dims) > 1:
                self.regular[:] = False
            elif num_axes(dims) == 0:
                self.base = self.base + array
            else:
                axis = axis_of(dims[-1])
                length = self.shape[axis]
                rows = np.broadcast_to(array, (*array.shape[:-1], length)).reshape(-1, length)
                by_axis[axis] = by_axis[axis] + rows if axis in by_axis else rows
        for axis, rows in by_axis.items():
            self._read_axis(axis, rows)

    def _read_axis(self, axis: int, rows: Array) -> None:
        """Add an axis's offsets ``[1 or lead, length]``, as base plus stride where regular."""
        low, high = self.low[:, axis], self.high[:, axis]
        if len(rows) == 1 and (low == low[0]).all() and (high == high[0]).all():
            low, high = low[:1], high[:1]
        length = rows.shape[1]
        first = np.minimum(low, length - 1)
        index = np.arange(len(first))
        if len(rows) == 1:
            rows = np.broadcast_to(rows, (len(first), length))
        start = rows[index, first]
        steps = np.diff(rows, axis=1)
        wide = high - low > 1
        if wide.any():
            chosen = int(np.argmax(wide))
            stride = int(steps[chosen, low[chosen]])
            position = np.arange(length - 1)
            inside = (position >= low[:, None]) & (position < high[:, None] - 1)
            self.regular &= ((steps == stride) | ~inside).all(axis=1)
            self.strides[axis] = stride
            start = start - stride * low
        self.base = self.base + start

    def parts(self) -> list[Part]:
        lead = self.lead
        if not self.active.any():
            return []
        signature = np.concatenate(
            [self.low, self.high, self.regular[:, None], self.active[:, None]], axis=1
        )
        cuts = np.flatnonzero((signature[1:] != signature[:-1]).any(axis=1)) + 1
        bounds = [0, *cuts.tolist(), lead]
        elements = lead * int(np.prod(self.shape, dtype=np.int64))
        if len(bounds) > 9 and elements < _SMALL_PART * (len(bounds) - 1):
            return [self.indices(0, lead)]
        boxes: list[Part] = []
        for start, end in pairwise(bounds):
            if not self.active[start]:
                continue
            if not self.regular[start]:
                boxes += _in_stretches(self.indices(start, end))
            else:
                boxes += self._boxes(start, end)
        return boxes

    def _boxes(self, start: int, end: int) -> list[Part]:
        """Cover programs ``start`` to ``end``, which share one rectangle."""
        base = self.base[start:end]
        steps = nested_steps(base)
        if steps is not None:
            return [self._box(start, end, steps)]
        stride_changes = np.flatnonzero(np.diff(base, n=2)) + 1
        # The step after a change starts a new run: of two successive cuts keep one.
        cuts: list[int] = []
        for change in stride_changes.tolist():
            if not cuts or change > cuts[-1]:
                cuts.append(change + 1)
        bounds = [0, *[c for c in cuts if c < len(base)], len(base)]
        size = int(np.prod(self.high[start] - self.low[start]))
        if len(base) * size < _SMALL_PART * (len(bounds) - 1):
            return [self.indices(start, end)]
        boxes: list[Part] = []
        for first, last in pairwise(bounds):
            inner = nested_steps(base[first:last])
            if inner is not None:
                boxes.append(self._box(start + first, start + last, inner))
            else:
                boxes += [
                    self._box(start + p, start + p + 1, ((1, 0),)) for p in range(first, last)
                ]
        return boxes

    def _box(self, start: int, end: int, steps: Steps) -> Box:
        low, high = self.low[start].tolist(), self.high[start].tolist()
        extents = tuple(h - lo for lo, h in zip(low, high, strict=True))
        offset = int(self.base[start]) + sum(
            stride * lo for stride, lo in zip(self.strides, low, strict=True)
        )
        return Box(
            (slice(start, end), *(slice(lo, h) for lo, h in zip(low, high, strict=True))),
            offset,
            (*(count for count, _ in steps), *extents),
            (*(stride for _, stride in steps), *self.strides),
            (end - start, *extents),
        )

    def indices(self, start: int, end: int) -> Indices:
        """Return every active element of the programs as positions and offsets."""
        dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(self.shape))))
        full = (self.lead, *self.value_shape)
        offsets = np.broadcast_to(self.offset.dense(dims), full)[start:end]
        active = np.broadcast_to(self.mask.dense(dims), full)[start:end]
        inside = np.flatnonzero(active)
        offsets = offsets.reshape(-1)[inside]
        positions = inside + start * int(np.prod(self.value_shape, dtype=np.int64))
        return make_indices(positions, offsets, self.itemsize)


def make_indices(positions: Array, offsets: Array, itemsize: int) -> Indices:
    """Return the part that accesses byte ``offsets[i]`` for the value's flat ``positions[i]``."""
    if not len(offsets):
        return Indices(positions, offsets, offsets, 0, 0)
    low, high = int(offsets.min()), int(offsets.max()) + itemsize
    offsets = offsets - low
    elements, rest = np.divmod(offsets, itemsize)
    return Indices(positions, offsets, None if rest.any() else elements, low, high)


def _in_stretches(part: Indices) -> list[Part]:
    """Return elements that follow each other as stretches, and others as they are."""
    positions, count = part.positions, len(part.positions)
    if count < _SMALL_PART or int(positions[-1]) - int(positions[0]) + 1 != count:
        return [part]
    pieces = _pieces(part.offsets, _MAX_LEVELS + 1)
    if pieces is None or len(pieces) * _SMALL_PART > count:
        return [part]
    return [
        Stretch(
            int(positions[0]) + first,
            int(np.prod([count for count, _ in steps])),
            part.low + int(part.offsets[first]),
            tuple(count for count, _ in steps),
            tuple(stride for _, stride in steps),
        )
        for first, steps in pieces
    ]


def _pieces(base: Array, levels: int) -> list[tuple[int, Steps]] | None:
    """Cut ``base`` into pieces of nested steps, each with its first element; None if it is no such.

    Whole runs of equal steps are equally long; the first and the last may be parts of one. What
    runs begin with is cut in the same way.

    >>> _pieces(np.array([1, 2, 10, 11, 12, 20, 21, 22, 30]), 2)
    [(0, ((2, 1),)), (2, ((2, 10), (3, 1))), (8, ((1, 1),))]
    """
    count = len(base)
    if count == 1:
        return [(0, ((1, 0),))]
    delta = np.diff(base)
    step = int(delta[0]) if delta[0] == delta[-1] else int(np.median(delta))
    cuts = np.flatnonzero(delta != step) + 1
    if not len(cuts):
        return [(0, ((count, step),))]
    first_cut = int(cuts[0])
    # A jump may be as long as a step: then a run is as long as several.
    length = int(np.diff(cuts).min()) if len(cuts) > 1 else max(first_cut, count - first_cut)
    if not levels or length < 2 or ((cuts - first_cut) % length).any():
        return None
    head = first_cut % length
    tail = (count - head) % length
    rows = _pieces(base[head : count - tail : length], levels - 1)
    if rows is None:
        return None
    numbers: list[tuple[int, Steps]] = [(0, ((head, step),))] if head else []
    numbers += [(head + first * length, (*steps, (length, step))) for first, steps in rows]
    return [*numbers, (count - tail, ((tail, step),))] if tail else numbers


def nested_steps(base: Array) -> Steps | None:
    """Return ``base`` as nested counts and strides, or None if it is not that regular.

    >>> nested_steps(np.array([0, 4, 8, 100, 104, 108]))
    ((2, 100), (3, 4))
    """
    if len(base) == 1:
        return ((1, 0),)
    steps: list[tuple[int, int]] = []
    while len(base) > 1:
        if len(steps) == _MAX_LEVELS:
            return None
        delta = np.diff(base)
        other = np.flatnonzero(delta != delta[0])
        length = int(other[0]) + 1 if len(other) else len(base)
        if len(base) % length or (length == 1 and len(base) > 1):
            return None
        rows = base.reshape(-1, length)
        if not (rows - rows[:, :1] == rows[0] - rows[0, 0]).all():
            return None
        steps.append((length, int(delta[0])))
        base = rows[:, 0]
    return tuple(reversed(steps))


def _runs(mask: Array) -> tuple[Array, Array, Array]:
    """Return per row the first and one past the last true element, and whether all between are."""
    length = mask.shape[1]
    any_true = mask.any(axis=1)
    first = np.where(any_true, mask.argmax(axis=1), 0)
    end = np.where(any_true, length - mask[:, ::-1].argmax(axis=1), 0)
    return first, end, mask.sum(axis=1) == end - first


def _ordered(part: Part, pattern: _Pattern) -> Part:
    """Replace views that access a byte twice by indices, which keep program order."""
    if isinstance(part, Indices):
        return part
    reach = pattern.itemsize
    dims = zip(part.view_shape, part.view_strides, strict=True)
    for count, stride in sorted(
        ((count, abs(stride)) for count, stride in dims if count > 1), key=lambda d: d[1]
    ):
        if stride < reach:
            if isinstance(part, Stretch):
                positions = np.arange(part.first, part.first + part.size)
                return make_indices(positions, part.offsets(), pattern.itemsize)
            return pattern.indices(part.where[0].start, part.where[0].stop)
        reach += (count - 1) * stride
    return part
