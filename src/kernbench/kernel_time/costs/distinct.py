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


def distinct(values: Array) -> tuple[Array, Array, Array]:
    """Return different numbers in order, where each is first, and of each value its number."""
    if not len(values):
        return values, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    if (values[1:] < values[:-1]).any():
        low, high = int(values.min()), int(values.max())
        if high - low < _MOST_PER_VALUE * len(values):
            return _by_table(values, low, high)
        found, first, which = np.unique(values, return_index=True, return_inverse=True)
        return found, first, which.reshape(-1)
    steps = values[1:] != values[:-1]
    first = np.concatenate((np.zeros(1, dtype=np.int64), np.flatnonzero(steps) + 1))
    which = np.zeros(len(values), dtype=np.int64)
    np.cumsum(steps, out=which[1:])
    return values[first], first, which


def _by_table(values: Array, low: int, high: int) -> tuple[Array, Array, Array]:
    """As :func:`distinct`, of numbers that lie close together."""
    at = values - low
    first_at = np.full(high - low + 1, -1, dtype=np.int64)
    # Of several writes to a place, the last one stays.
    first_at[at[::-1]] = np.arange(len(at) - 1, -1, -1)
    found = np.flatnonzero(first_at >= 0)
    number = np.zeros(len(first_at), dtype=np.int64)
    number[found] = np.arange(len(found))
    return found + low, first_at[found], number[at]


def distinct_values(values: Array) -> Array:
    """Return different numbers in order."""
    if (values[1:] < values[:-1]).any():
        # Sorting is faster than the table of hashes that numpy.unique makes.
        values = np.sort(values)
    is_other = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_other[1:])
    return np.compress(is_other, values)
