"""Different numbers of an array: numpy's ``unique``, at once where the numbers are in order.

Numbers of programs mostly are in order, of hundreds of thousands of them, and numpy sorts or hashes
them all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


_MOST_PER_VALUE = 4
"""Numbers within so many times their count are looked up in a table of that length."""
_MANY, _SAMPLE = 1 << 15, 1 << 12
"""From so many numbers on, so many are looked at to see whether few of all are different."""


def distinct(values: Array) -> tuple[Array, Array, Array]:
    """Return different numbers in order, where each is first, and of each value its number."""
    if not len(values):
        return values, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    if (values[1:] < values[:-1]).any():
        low, high = int(values.min()), int(values.max())
        if high - low < _MOST_PER_VALUE * len(values):
            return _by_table(values, low, high)
        if len(values) >= _MANY:
            known = _by_sample(values)
            if known is not None:
                return known
        array, first, which = np.unique(values, return_index=True, return_inverse=True)
        return array, first, which.reshape(-1)
    steps = values[1:] != values[:-1]
    first = np.concatenate((np.zeros(1, dtype=np.int64), np.flatnonzero(steps) + 1))
    which = np.zeros(len(values), dtype=np.int64)
    np.cumsum(steps, out=which[1:])
    return values[first], first, which


def _by_sample(values: Array) -> tuple[Array, Array, Array] | None:
    """Do as :func:`distinct`, of few different numbers that lie apart; None of many.

    Looking up each number in a short list takes a fifth of the time of sorting all.
    """
    result = np.unique(values[:: len(values) // _SAMPLE])
    for _ in range(2):
        if len(result) > _SAMPLE // 2:
            return None
        which = np.minimum(np.searchsorted(result, values), len(result) - 1)
        others = values[result[which] != values]
        if not len(others):
            return result, _firsts(which, len(result)), which
        if len(others) > len(values) // 2:
            return None
        result = np.union1d(result, others)
    return None


def _firsts(which: Array, count: int) -> Array:
    """Return where each number from 0 to ``count`` is first; all of them are somewhere."""
    first = np.empty(count, dtype=np.int64)
    # Of several writes to a place, the last one stays.
    first[which[::-1]] = np.arange(len(which) - 1, -1, -1)
    return first


def _by_table(values: Array, low: int, high: int) -> tuple[Array, Array, Array]:
    """Do as :func:`distinct`, of numbers that lie close together."""
    at = values - low
    is_there = np.zeros(high - low + 1, dtype=bool)
    is_there[at] = True
    result = np.flatnonzero(is_there)
    which = (np.cumsum(is_there) - 1)[at]
    return result + low, _firsts(which, len(result)), which


def distinct_values(values: Array) -> Array:
    """Return different numbers in order."""
    if (values[1:] < values[:-1]).any():
        # Sorting is faster than the table of hashes that numpy.unique makes.
        values = np.sort(values)
    is_other = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_other[1:])
    return np.compress(is_other, values)
