"""Which bytes of each tensor a trace touches, exactly, without listing addresses.

An address is a sum of terms and a mask is a conjunction of terms, each over few dims. The least and
the greatest address of the lanes that are switched on follow by eliminating one dim at a time:
gather the terms that vary over it, add them up, put an impossible value where a mask term is false,
and take the extreme along it. What remains is a term over the other dims of those terms. Tensor
axes go first, so no array ever spans two axes of a tile.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    Command,
    Dims,
    DmaRead,
    DmaWrite,
    KernelTrace,
    Mask,
    Predicate,
    ProgramGroup,
    RowTable,
    Separable,
    SourceLine,
    Transfer,
    access_of,
    aligned,
    by_path,
    is_axis,
    is_loop,
    loop_dim,
    union,
    walk,
)
from kernbench.dtypes import Array

Extent = tuple[int, int]
Trips = Mapping[int, Array]
ALL_ITERATIONS: Trips = MappingProxyType({})
"""No loop that programs go around differently often."""

_OFF = 1 << 60
"""Distance from any real address at which a lane that is switched off is put."""
_MAX_ELEMENTS = 1 << 24
"""How many numbers one elimination step may hold; above it, programs are taken in parts."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes ``[low, high)`` of a parameter's tensor that a trace touches, relative to it.

    ``is_complete`` is False when some access of it goes through an address or a mask that only
    replay knows; that access is not in the range, and replay checks it.
    """

    param: int
    low: int
    high: int
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class OutOfBounds:
    """The first access of a trace that leaves its tensor."""

    command: Transfer
    line: SourceLine
    byte_offset: int
    program: tuple[int, int, int]
    access_bytes: int
    is_store: bool


_CACHE: weakref.WeakKeyDictionary[KernelTrace, tuple[Footprint, ...]] = weakref.WeakKeyDictionary()


def footprints(trace: KernelTrace) -> tuple[Footprint, ...]:
    """Return what a trace touches of each pointer parameter, in order of the parameters.

    A parameter whose lanes are all switched off has none. Computed once per trace.
    """
    cache = _CACHE.get(trace)
    if cache is None:
        cache = _CACHE[trace] = tuple(_footprints(trace))
    return cache


def _footprints(trace: KernelTrace) -> Iterator[Footprint]:
    ranges: dict[int, tuple[int, int]] = {}
    incomplete: set[int] = set()
    for group in trace.groups:
        trips = {loop_dim(loop_id): counts for loop_id, counts in group.trips}
        for _, access, mask in accesses(group):
            if access.gather is not None or not isinstance(mask, Predicate):
                incomplete.add(access.param)
                continue
            extent = touched(access, mask, trips)
            if extent is not None:
                low, high = ranges.get(access.param, extent)
                ranges[access.param] = (min(low, extent[0]), max(high, extent[1]))
    for param in sorted(ranges.keys() | incomplete):
        low, high = ranges.get(param, (0, 0))
        yield Footprint(param, low, high, param not in incomplete)


def accesses(group: ProgramGroup) -> Iterator[tuple[Transfer, Access, Mask]]:
    """Yield every load, store and atomic of a group, in order."""
    command: Command
    for command in walk(group.body):
        if isinstance(command, DmaRead | DmaWrite | Atomic):
            yield command, access_of(command), command.mask


def touched(access: Access, mask: Predicate, trips: Trips = ALL_ITERATIONS) -> Extent | None:
    """Return the byte range of all lanes that are on, or None if none is.

    ``trips`` are, by loop dim, the trip counts of programs that go around it differently often.
    """
    if mask.is_uniform:
        if not mask.is_true:
            return None
        low, high = access.offset.bounds()
        if _is_exact(access.offset) and trips.keys().isdisjoint(access.offset.dims):
            return low, high + access.dtype.itemsize
    lowest = extreme(access.offset, mask, largest=False, trips=trips)
    highest = extreme(access.offset, mask, largest=True, trips=trips)
    low, high = int(lowest.reshape(-1)[0]), int(highest.reshape(-1)[0])
    if low > _OFF // 2:
        return None
    return low, high + access.dtype.itemsize


def _is_exact(value: Separable) -> bool:
    """Whether no two terms share a dim, so that bounds of terms add up to bounds of the sum."""
    dims = [dim for term in value.terms for dim in term]
    return len(dims) == len(set(dims))


def extreme(
    value: Separable,
    mask: Predicate,
    *,
    largest: bool,
    keep: int | None = None,
    trips: Trips = ALL_ITERATIONS,
) -> Array:
    """Return the least or greatest number where the mask holds, over all dims but ``keep``.

    The result has one element, or one per index of ``keep`` (length 1 if nothing varies over it).
    Where no lane is on it is beyond any address: above ``2**59``, or below ``-2**59``.
    """
    off = -_OFF if largest else _OFF
    factors: list[tuple[Dims, Array]] = list(value.terms.items())
    factors += [(dims, np.multiply(~array, off)) for dims, array in mask.terms.items()]
    everything = union(*(dims for dims, _ in factors))
    if not trips.keys().isdisjoint(everything):
        # Where a loop ends differs between programs, even if nothing else does.
        everything = union(everything, (PROGRAM,))
    for dim in sorted(everything, key=_elimination_order):
        if dim == keep:
            continue
        bucket = [factor for factor in factors if dim in factor[0]]
        factors = [factor for factor in factors if dim not in factor[0]]
        if dim in trips:
            dims, array = _first_iterations(bucket, dim, largest, trips[dim])
        else:
            dims, array = _eliminated(bucket, dim, largest)
        # Several switched-off terms must not add up beyond int64.
        factors.append((dims, np.clip(array, -_OFF, _OFF)))
    target = () if keep is None else (keep,)
    total: Array = np.full((1,) * len(target), value.const, dtype=np.int64)
    for dims, array in factors:
        total = total + aligned(array, dims, target)
    return total


def _elimination_order(dim: int) -> tuple[int, int]:
    """Axes first, then loops from the inside out, then programs."""
    if is_axis(dim):
        return (0, dim)
    return (1, -dim) if is_loop(dim) else (2, 0)


def _eliminated(bucket: list[tuple[Dims, Array]], dim: int, largest: bool) -> tuple[Dims, Array]:
    """Add the factors up and take the extreme along ``dim``."""
    target = union(*(dims for dims, _ in bucket))
    rest = tuple(number for number in target if number != dim)
    where = target.index(dim)
    views = [aligned(array, dims, target) for dims, array in bucket]
    shape = np.broadcast_shapes(*(view.shape for view in views))
    reduce = np.max if largest else np.min
    if any(isinstance(view, RowTable) for view in views):
        total = _sum(views)
        if isinstance(total, RowTable):
            return rest, reduce(total, axis=where)
    if int(np.prod(shape)) <= _MAX_ELEMENTS or where == 0:
        return rest, reduce(_sum(views), axis=where)
    # The first dim is kept, so it can be taken in parts.
    step = max(_MAX_ELEMENTS * shape[0] // int(np.prod(shape)), 1)
    parts = []
    for start in range(0, shape[0], step):
        cut = [view[start : start + step] if view.shape[0] > 1 else view for view in views]
        part = reduce(_sum(cut), axis=where)
        length = min(step, shape[0] - start)
        parts.append(np.broadcast_to(part, (length, *part.shape[1:])))
    return rest, np.concatenate(parts)


def _first_iterations(
    bucket: list[tuple[Dims, Array]], dim: int, largest: bool, trips: Array
) -> tuple[Dims, Array]:
    """As :func:`_eliminated`, along a loop that each program leaves after ``trips`` iterations."""
    target = union(*(dims for dims, _ in bucket))
    where = target.index(dim)
    total = _sum([aligned(array, dims, target) for dims, array in bucket])
    shape = list(total.shape)
    shape[where] = int(trips.max())
    best = np.maximum if largest else np.minimum
    so_far = best.accumulate(np.broadcast_to(total, shape), axis=where)
    if target[0] != PROGRAM:
        rest = tuple(number for number in target if number != dim)
        return (PROGRAM, *rest), np.moveaxis(so_far, where, 0)[trips - 1]
    last = (trips - 1).reshape(-1, *(1,) * (so_far.ndim - 1))
    so_far = np.broadcast_to(so_far, (len(trips), *so_far.shape[1:]))
    picked = np.take_along_axis(so_far, last, axis=where).squeeze(axis=where)
    return tuple(number for number in target if number != dim), picked


def _sum(views: list[Array]) -> Array:
    total = views[0]
    for view in views[1:]:
        total = total + view
    return total


def out_of_bounds(
    trace: KernelTrace, param: int, size_before: int, size_after: int, *, reads: bool = True
) -> OutOfBounds | None:
    """Return the first access of a parameter outside its tensor, or None.

    Without ``reads`` loads may leave it.

    The tensor has ``size_before`` bytes before the address that the parameter points to, and
    ``size_after`` from it on. First is: by group, then by order in the kernel's text, then by
    program, iteration and element. Accesses that only replay knows are left to replay.
    """
    whole = next((footprint for footprint in footprints(trace) if footprint.param == param), None)
    if whole is None or (-size_before <= whole.low and whole.high <= size_after):
        return None
    for group in by_path(trace).groups:
        for command, access, mask in accesses(group):
            if access.param != param or access.gather is not None:
                continue
            if not isinstance(mask, Predicate) or not (reads or not isinstance(command, DmaRead)):
                continue
            extent = touched(access, mask)
            if extent is None or (-size_before <= extent[0] and extent[1] <= size_after):
                continue
            return _first(trace, group, command, access, mask, size_before, size_after)
    return None


def _first(
    trace: KernelTrace,
    group: ProgramGroup,
    command: Transfer,
    access: Access,
    mask: Predicate,
    size_before: int,
    size_after: int,
) -> OutOfBounds:
    last = size_after - access.dtype.itemsize
    offset, on = access.offset, mask
    program = 0
    # Programs first, then loops from the outside in: fix each at its first bad index.
    for dim in union(*offset.terms, *on.terms):
        if is_axis(dim):
            break
        low = extreme(offset, on, largest=False, keep=dim)
        high = extreme(offset, on, largest=True, keep=dim)
        is_on = low < _OFF // 2
        index = int(np.argmax(is_on & ((low < -size_before) | (high > last))))
        program = index if dim == PROGRAM else program
        offset, on = offset.at(dim, index), on.at(dim, index)
    byte_offset = _first_element(offset, on, -size_before, last)
    x, y, _ = trace.grid
    linear = int(group.program_ids[program])
    return OutOfBounds(
        command,
        command.line,
        byte_offset,
        (linear % x, linear // x % y, linear // (x * y)),
        access.dtype.itemsize,
        not isinstance(command, DmaRead),
    )


def _first_element(offset: Separable, mask: Predicate, first: int, last: int) -> int:
    """Return the first offset of one tile, in row-major order, outside ``[first, last]``."""
    dims = union(*offset.terms, *mask.terms)
    numbers, on = np.broadcast_arrays(offset.dense(dims), mask.dense(dims))
    bad = on & ((numbers < first) | (numbers > last))
    return int(numbers.reshape(-1)[np.argmax(bad.reshape(-1))])
