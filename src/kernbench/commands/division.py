"""Quotients and remainders of tensors over programs and elements, by rows that are alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands.distinct import distinct
from kernbench.commands.rows import MANY, RowTable
from kernbench.commands.separable import Dims, Separable, aligned, is_axis

Array = npt.NDArray[Any]


def split_by_rows(value: Separable, divisor: int) -> tuple[Separable, Separable] | None:
    """Return quotient and remainder of a non-negative tensor over one axis and other dims.

    Both parts, that of the axis and that of the other dims, are divided on their own. Their
    remainders make at most one carry, which an element has if its remainder reaches what the
    other part leaves free. So rows are alike whose other part leaves as many elements a carry.

    None: it has few elements, or varies over several axes, or over an axis alone.
    """
    dims = value.dims
    if len(dims) < 2 or not is_axis(dims[-1]) or is_axis(dims[-2]):
        return None
    lead = dims[:-1]
    parts = _parts_of(value, lead)
    if parts is None:
        return None
    over, index, table = parts
    if over.size * table.shape[1] < MANY:
        return None
    whole, free = divided(over, divisor)
    quotient, rest = divided(table, divisor)
    index, rows, carries = _rows_with_carry(divisor - free, index, rest)
    axis = dims[-1:]
    of_axis: tuple[dict[Dims, Array], ...]
    if (quotient == quotient[0]).all() and (rest == rest[0]).all():
        # One row before the carry: it is a term of the axis alone.
        of_axis = {axis: quotient[0]}, {axis: rest[0]}
        steps = carries.astype(np.int64)
        tables = steps, steps * -divisor
    else:
        of_axis = {}, {}
        tables = quotient[rows] + carries, rest[rows] - carries * np.int64(divisor)
    separables = []
    for over_part, by_axis, steps_or_rows in zip((whole, free), of_axis, tables, strict=True):
        terms: dict[Dims, Any] = {lead: over_part, **by_axis}
        if steps_or_rows.any():
            terms[dims] = RowTable(index, steps_or_rows)
        separables.append(Separable(value.shape, 0, terms).trimmed())
    high = value.bounds()[1] // divisor
    return separables[0].bounded(0, high), separables[1].bounded(0, divisor - 1)


def _parts_of(value: Separable, lead: Dims) -> tuple[Array, Array, Array] | None:
    """Return the numbers over ``lead``, and which row of a table is added to each of them."""
    over: Array = np.full((1,) * len(lead), value.const, dtype=np.int64)
    index: Array | None = None
    row: Array = np.zeros(1, dtype=np.int64)
    table: Array = np.zeros((1, 1), dtype=np.int64)
    for dims, array in value.terms.items():
        if isinstance(array, RowTable):
            if index is not None:
                return None
            index, table = aligned(array.index, dims[:-1], lead), array.table
        elif not is_axis(dims[-1]):
            over = over + aligned(array, dims, lead)
        elif len(dims) == 1:
            row = array
        else:
            return None
    if index is None:
        index = np.zeros((1,) * len(lead), dtype=np.int64)
    shape = np.broadcast_shapes(over.shape, index.shape)
    return np.broadcast_to(over, shape), np.broadcast_to(index, shape), table + row


def divided(array: Array, divisor: int) -> tuple[Array, Array]:
    """Return quotients (rounded down) and remainders; twice as quick as numpy's remainders."""
    quotient: Array = array // divisor
    remainder: Array = quotient * -divisor
    remainder += array
    return quotient, remainder


def _rows_with_carry(limits: Array, index: Array, rest: Array) -> tuple[Array, Array, Array]:
    """Return what kind each row is of, and of each kind: its row of ``rest``, and its carries."""
    kinds = np.empty(limits.size, dtype=np.int64)
    rows: list[int] = []
    carries: list[Array] = []
    flat, of_row = limits.reshape(-1), index.reshape(-1)
    # All of one row mostly.
    order = np.argsort(of_row, kind="stable") if len(rest) > 1 else np.arange(len(of_row))
    starts = np.searchsorted(of_row[order], np.arange(len(rest) + 1))
    for row, remainders in enumerate(rest):
        members = order[starts[row] : starts[row + 1]]
        if not len(members):
            continue
        steps = np.unique(remainders)
        # How many of the steps stay below the limit.
        below = np.searchsorted(steps, flat[members])
        used, _, which = distinct(below)
        kinds[members] = len(rows) + which
        ends = [*steps.tolist(), math.inf]
        rows += [row] * len(used)
        carries += [remainders >= ends[at] for at in used.tolist()]
    return kinds.reshape(limits.shape), np.array(rows), np.array(carries)
