"""Different numbers of an array: numpy's ``unique``, at once where the numbers are in order.

Numbers of programs mostly are in order, of hundreds of thousands of them, and numpy sorts or hashes
them all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def distinct(values: Array) -> tuple[Array, Array, Array]:
    """Return different numbers in order, where each is first, and of each value its number."""
    if not len(values) or (values[1:] < values[:-1]).any():
        found, first, which = np.unique(values, return_index=True, return_inverse=True)
        return found, first, which.reshape(-1)
    steps = values[1:] != values[:-1]
    first = np.concatenate((np.zeros(1, dtype=np.int64), np.flatnonzero(steps) + 1))
    which = np.zeros(len(values), dtype=np.int64)
    np.cumsum(steps, out=which[1:])
    return values[first], first, which


def distinct_values(values: Array) -> Array:
    """Return different numbers in order."""
    if (values[1:] < values[:-1]).any():
        # Sorting is faster than the table of hashes that numpy.unique makes.
        values = np.sort(values)
    is_other = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_other[1:])
    return np.compress(is_other, values)
