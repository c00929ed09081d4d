"""The exact bytes of an access, for all its programs, as ascending disjoint ranges.

Addresses are sums of terms that mostly depend on different dims, so the set of addresses is the
sum of small sets. It is marked in a map of the range between the lowest and the highest byte;
nothing is ever as large as programs times tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import PROGRAM, Dims, Predicate, Separable, aligned, union

Array = npt.NDArray[Any]
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
    unit = math.gcd(itemsize, offset.const, *(_gcd(term) for term in offset.terms.values()))
    parts = [_sums(itemsize // unit, sets) for sets in _classes(offset, mask, unit)]
    if not parts:
        return NO_SPANS
    low = min(part_low for part_low, _ in parts)
    high = max(part_low + len(flags) for part_low, flags in parts)
    total: Array = np.zeros(high - low, np.bool_)
    for part_low, flags in parts:
        total[part_low - low : part_low - low + len(flags)] |= flags
    return flagged_spans(total, offset.const + unit * low, unit)


def _gcd(array: Array) -> int:
    return int(np.gcd.reduce(array, axis=None))


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
