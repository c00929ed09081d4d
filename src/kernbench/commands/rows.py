"""Arrays of which few rows differ: a table of rows, and which of them is where.

The addresses of a kernel that divides its index vary over programs and elements at once, but the
rows of most programs are alike: which elements lie behind a multiple of the divisor follows from a
program's remainder. A table of those rows takes the place of an array of all elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from kernbench.dtypes import Array

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


MANY = 1 << 16
"""From how many elements on it pays to look for rows that are alike."""

_OF_ALL = {np.minimum, np.maximum, np.logical_and, np.logical_or}
"""Ufuncs that give the same whether a row is met once or often."""


class RowTable(NDArrayOperatorsMixin):
    """An array whose row at ``index[i, j, ...]`` of the table is at ``[i, j, ..., :]``.

    Element by element, functions of numpy are applied to the table alone; whatever else numpy is
    asked sees an array of all elements. As arrays in terms, it is never written to.
    """

    __slots__ = ("index", "table")

    def __init__(self, index: Array, table: Array) -> None:
        self.index = index
        """Numbers of rows, over all dims but the last one."""
        self.table = table
        """All rows, one after the other; each of them is somewhere."""

    def __repr__(self) -> str:
        return f"RowTable({self.index.shape} of {self.table.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.index.shape, self.table.shape[1])

    @property
    def ndim(self) -> int:
        return self.index.ndim + 1

    @property
    def size(self) -> int:
        """How many elements the array has, not the table."""
        return int(self.index.size * self.table.shape[1])

    @property
    def nbytes(self) -> int:
        """What is held in memory."""
        return self.index.nbytes + self.table.nbytes

    @property
    def dtype(self) -> Any:
        return self.table.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array: Array = self.table[self.index]
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(item, RowTable) for item in options.get("out", ())):
            # For ``+=``: its result is another array, as none is written to.
            options.pop("out")
        if method == "__call__" and not options:
            array_ufunc = _elementwise(ufunc, inputs)
            if array_ufunc is not None:
                return array_ufunc
        if method == "reduce" and ufunc in _OF_ALL and set(options) <= {"axis"}:
            return self._reduced(ufunc, options.get("axis", 0))
        arrays = [np.asarray(table) if isinstance(table, RowTable) else table for table in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def _reduced(self, ufunc: Any, axis: int | None) -> Any:
        if axis is None:
            return ufunc.reduce(self.table, axis=None)
        if axis in (-1, self.ndim - 1):
            return ufunc.reduce(self.table, axis=1)[self.index]
        return ufunc.reduce(np.asarray(self), axis=axis)

    def min(self, axis: int | None = None, **ignored: Any) -> Any:
        return self._reduced(np.minimum, axis)

    def max(self, axis: int | None = None, **ignored: Any) -> Any:
        return self._reduced(np.maximum, axis)

    def any(self, axis: int | None = None, **ignored: Any) -> Any:
        return self._reduced(np.logical_or, axis)

    def all(self, axis: int | None = None, **ignored: Any) -> Any:
        return self._reduced(np.logical_and, axis)

    def clip(self, low: Any = None, high: Any = None, **ignored: Any) -> RowTable:
        return RowTable(self.index, self.table.clip(low, high))

    def astype(self, dtype: Any, copy: bool = True) -> RowTable:
        table = self.table.astype(dtype, copy=copy)
        return self if table is self.table else RowTable(self.index, table)

    def take(self, which: Any, axis: int) -> Any:
        """Do as numpy's ``take`` along one axis."""
        if axis in (-1, self.ndim - 1):
            table = self.table.take(which, axis=1)
            return table[self.index] if table.ndim == 1 else RowTable(self.index, table)
        return _of_index(self.index.take(which, axis=axis), self.table)

    def __getitem__(self, key: Any) -> Any:
        """Numpy's indexing, as far as it picks rows, or picks from all rows alike."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(item is Ellipsis for item in keys):
            at = next(i for i, item in enumerate(keys) if item is Ellipsis)
            missing = self.ndim - sum(item is not None for item in keys) + 1
            keys[at : at + 1] = [slice(None)] * missing
        named = sum(item is not None for item in keys)
        if named < self.ndim:
            return _of_index(self.index[tuple(keys)], self.table)
        last = keys[-1]
        if last is None or not isinstance(last, int | np.integer | slice):
            return np.asarray(self)[tuple(keys)]
        index = self.index[tuple(keys[:-1])]
        picked = self.table[:, last]
        return picked[index] if picked.ndim == 1 else _of_index(index, picked)

    def reshape(self, *shape: Any) -> Array:
        return np.asarray(self).reshape(*shape)

    def transpose(self, *axes: Any) -> Array:
        return np.asarray(self).transpose(*axes)

    def squeeze(self, axis: Any = None) -> Array:
        return np.asarray(self).squeeze(axis)

    def view(self, dtype: Any) -> RowTable:
        return RowTable(self.index, self.table.view(dtype))

    def sum(self, **options: Any) -> Any:
        return np.asarray(self).sum(**options)

    def tobytes(self) -> bytes:
        return np.asarray(self).tobytes()

    def along_rows(self, vector: Array) -> Array:
        """Return the product of each row with a vector."""
        rows: Array = np.tensordot(self.table, vector, axes=(1, 0))[self.index]
        return rows


def rows_of(labels: Sequence[Array], num_elements: int) -> tuple[Array, Array] | None:
    """Return which rows are alike, and where each kind is met first; None if too many differ.

    ``labels`` are arrays of one shape; rows with equal numbers in all of them are alike. A table
    of more than a quarter of the elements would save little.
    """
    index: Array | None = None
    first: Array = np.zeros(0, dtype=np.int64)
    for label in labels:
        _, first, codes = distinct(label.reshape(-1))
        if index is not None:
            codes = codes + index * (int(codes.max()) + 1)
            _, first, codes = distinct(codes)
        index = codes
        if 4 * (int(codes.max()) + 1) * num_elements > codes.size * num_elements:
            return None
    assert index is not None
    return index.reshape(labels[0].shape), first


def _of_index(index: Any, table: Array) -> Any:
    """Return the rows that an index names: an array where it names one."""
    if np.ndim(index) == 0:
        return table[index]
    return RowTable(index, table)


def _elementwise(ufunc: Any, inputs: Sequence[Any]) -> RowTable | None:
    """Apply a function to tables, if all other operands are alike in all rows."""
    rows = [row_table for row_table in inputs if isinstance(row_table, RowTable)]
    if all(row.index is rows[0].index for row in rows[1:]) or all(
        np.array_equal(row.index, rows[0].index) for row in rows[1:]
    ):
        index, tables = rows[0].index, {id(row): row.table for row in rows}
    else:
        met = _met_together(rows)
        if met is None:
            return None
        index, tables = met
    arrays = []
    for row_table in inputs:
        if isinstance(row_table, RowTable):
            arrays.append(tables[id(row_table)])
        elif np.ndim(row_table) == 0:
            arrays.append(row_table)
        elif np.size(row_table) == np.shape(row_table)[-1] and np.ndim(row_table) <= index.ndim + 1:
            arrays.append(np.reshape(row_table, (1, -1)))
        else:
            return None
    return RowTable(index, ufunc(*arrays))


def _met_together(rows: Sequence[RowTable]) -> tuple[Array, dict[int, Array]] | None:
    """Return one index for several tables, and the tables by it."""
    shape = np.broadcast_shapes(*(row.index.shape for row in rows))
    labels = [np.broadcast_to(row.index, shape) for row in rows]
    pair = rows_of(labels, max(row.table.shape[1] for row in rows))
    if pair is None:
        return None
    index, first = pair
    return index, {
        id(row): row.table[label.reshape(-1)[first]]
        for row, label in zip(rows, labels, strict=True)
    }
