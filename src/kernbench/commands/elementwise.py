"""Functions of separable tensors that are not linear: of all elements, or of rows that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.commands.rows import MANY, RowTable, distinct, rows_of
from kernbench.commands.separable import (
    Dims,
    NotSeparableError,
    Predicate,
    Separable,
    aligned,
    conjunction,
    constant,
    fold_terms,
    is_axis,
    loop_dim,
    num_axes,
    union,
)
from kernbench.dtypes import Array

Function = Callable[[Array, Array], Array]


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
        used, _, which = distinct(np.searchsorted(steps, flat[members]))
        kinds[members] = len(rows) + which
        ends = [*steps.tolist(), math.inf]
        rows += [row] * len(used)
        carries += [remainders >= ends[at] for at in used.tolist()]
    return kinds.reshape(limits.shape), np.array(rows), np.array(carries)


def combine(function: Function, a: Separable, b: Separable) -> Separable:
    """Return ``function(a, b)`` element by element, for a function that is not linear.

    Raises:
        NotSeparableError: The operands vary over two tensor axes.
    """
    both = _joint(a, b)
    result = _applied(function, both, a, b).astype(np.int64, copy=False)
    if not both:
        return Separable(a.shape or b.shape, int(result))
    dims, array = _squeezed(both, result)
    return fold_terms(a.shape or b.shape, 0, {dims: array})


def compare(function: Function, a: Separable, b: Separable) -> Predicate:
    """Return the boolean tensor ``function(a, b)``, for an order or (in)equality of integers.

    Raises:
        NotSeparableError: The operands vary over two tensor axes.
    """
    shape = a.shape or b.shape
    # Sides as (terms over axes alone, all other terms): parts that both sides share cancel, and
    # the order of two numbers is that of their difference, which cannot overflow below 2**62.
    (a_low, a_high), (b_low, b_high) = a.bounds(), b.bounds()
    if max(abs(a_low), abs(a_high), abs(b_low), abs(b_high)) >= 1 << 61:
        both = _joint(a, b)
        return _predicate(shape, both, _applied(function, both, a, b))
    known = _sign_decides(function, a_low - b_high, a_high - b_low)
    if known is not None:
        return constant(known, shape)
    difference = (a - b).trimmed()
    known = _sign_decides(function, *difference.bounds())
    if known is not None:
        return constant(known, shape)
    both = _joint(difference)
    if any(isinstance(array, RowTable) for array in difference.terms.values()):
        return _predicate(shape, both, _applied(function, both, difference, Separable(())))
    axes = {dims: array for dims, array in difference.terms.items() if all(map(is_axis, dims))}
    rest = {dims: array for dims, array in difference.terms.items() if dims not in axes}
    left = Separable((), difference.const, axes).dense(both)
    right = (-Separable((), 0, rest)).dense(both)
    if both and is_axis(both[-1]) and right.shape[-1] == 1 and function in _ORDERS:
        return conjunction(shape, dict([_compare_rows(function, left, right, both)]))
    return _predicate(shape, both, function(left, right))


def _sign_decides(function: Function, low: int, high: int) -> bool | None:
    """Return the one answer for all differences from ``low`` to ``high``, None if there is none."""
    zero = np.zeros((), dtype=np.int64)
    if low == high or low > 0 or high < 0:
        return bool(function(np.asarray(low), zero))
    if low < 0 < high:
        return None
    # Zero is the only value whose answer may differ.
    edge, inside = function(zero, zero), function(np.asarray(low or high), zero)
    return bool(edge) if edge == inside else None


_ORDERS = (np.less, np.less_equal, np.greater, np.greater_equal)


def _compare_rows(function: Function, row: Array, limits: Array, dims: Dims) -> tuple[Dims, Any]:
    """Return the term ``function(row, limits)`` over ``dims``, without those it does not need.

    The row lies along the last dim. Which of its elements hold follows from how many do, so few
    rows differ: those are compared, and the result is put together from them.
    """
    row, limits = row.reshape(-1), limits[..., 0]
    easiest, hardest = row.min(), row.max()
    if function in (np.greater, np.greater_equal):
        easiest, hardest = hardest, easiest
    none, every = ~function(easiest, limits), function(hardest, limits)
    mixed = ~(none | every)
    values, _, which = distinct(limits[mixed])
    array = function(row, values[:, None])
    _, first, alike = np.unique(array.sum(axis=1), return_index=True, return_inverse=True)
    # By number: no element, those of each mixed row, every element.
    rows = np.concatenate([row[None] != row, array[first], row[None] == row])
    number = np.where(every, len(rows) - 1, 0)
    number[mixed] = 1 + alike.reshape(-1)[which]
    kept, number = _squeezed(dims[:-1], number)
    if not mixed.any():
        return kept, np.asarray(number > 0)
    if number.size * rows.shape[1] >= MANY and number.ndim:
        used, _, which = distinct(number.reshape(-1))
        return (*kept, dims[-1]), RowTable(which.reshape(number.shape), rows[used])
    return (*kept, dims[-1]), rows[number]


def select_separable(condition: Predicate, a: Separable, b: Separable) -> Separable:
    """Return ``a`` where the condition holds, else ``b``.

    Raises:
        NotSeparableError: The three vary over two tensor axes.
    """
    both = _joint(condition, a, b)
    dims, array = _squeezed(both, _applied(np.where, both, condition, a, b))
    return fold_terms(condition.shape or a.shape or b.shape, 0, {dims: array})


def combine_predicates(function: Function, a: Predicate, b: Predicate) -> Predicate:
    """Return ``function(a, b)`` for booleans (or, xor, not); and has its own operator ``&``.

    Raises:
        NotSeparableError: The operands vary over two tensor axes.
    """
    both = _joint(a, b)
    return _predicate(a.shape or b.shape, both, _applied(function, both, a, b))


def stack(values: Sequence[Separable], loop_id: int) -> Separable:
    """Return the tensor whose iteration ``k`` of the loop is ``values[k]``."""
    terms: dict[Dims, Array] = {}
    dim = loop_dim(loop_id)
    for key in {dims for value in values for dims in value.terms}:
        shape = next(value.terms[key].shape for value in values if key in value.terms)
        zeros = np.zeros(shape, dtype=np.int64)
        dims, array = _stacked(key, dim, [value.terms.get(key, zeros) for value in values])
        terms[dims] = terms[dims] + array if dims in terms else array
    consts = np.array([value.const for value in values], dtype=np.int64)
    result = Separable(values[0].shape, 0, terms) + Separable((), 0, {(dim,): consts})
    return result.trimmed()


def stack_predicates(values: Sequence[Predicate], loop_id: int) -> Predicate:
    """Do as :func:`stack`, for booleans."""
    terms: dict[Dims, Array] = {}
    for key in {dims for value in values for dims in value.terms}:
        shape = next(value.terms[key].shape for value in values if key in value.terms)
        ones = np.ones(shape, dtype=np.bool_)
        arrays = [value.terms.get(key, ones) for value in values]
        dims, array = _stacked(key, loop_dim(loop_id), arrays)
        terms[dims] = terms[dims] & array if dims in terms else array
    return conjunction(values[0].shape, terms)


def _stacked(key: Dims, dim: int, arrays: list[Array]) -> tuple[Dims, Array]:
    target = union(key, (dim,))
    return _squeezed(target, np.stack(arrays, axis=target.index(dim)))


def _joint(*values: Separable | Predicate) -> Dims:
    """Return the dims that the values vary over together, at most one of them an axis."""
    both = union(*(dims for value in values for dims in value.terms))
    if num_axes(both) > 1:
        raise NotSeparableError
    return both


def _applied(function: Callable[..., Array], dims: Dims, *values: Separable | Predicate) -> Any:
    """Return ``function`` of all elements over ``dims``, of alike rows once if there are many."""
    rows = _of_rows(function, dims, values)
    return function(*(value.dense(dims) for value in values)) if rows is None else rows


def _of_rows(
    function: Callable[..., Array], dims: Dims, values: Sequence[Separable | Predicate]
) -> RowTable | None:
    """Return ``function`` of rows that differ; None if there are few elements, or few alike."""
    lengths: dict[int, int] = {}
    for value in values:
        for term, array in value.terms.items():
            lengths.update(
                (dim, max(n, lengths.get(dim, 1))) for dim, n in zip(term, array.shape, strict=True)
            )
    if len(dims) < 2 or not is_axis(dims[-1]) or dims[-1] not in lengths:
        return None
    lead, length = dims[:-1], lengths[dims[-1]]
    shape = tuple(lengths.get(dim, 1) for dim in lead)
    if length * math.prod(shape) < MANY:
        return None
    labels: list[Array] = []
    for value in values:
        for term, array in value.terms.items():
            if isinstance(array, RowTable):
                labels.append(aligned(array.index, term[:-1], lead))
            elif term and not is_axis(term[-1]):
                labels.append(aligned(array, term, lead))
            elif len(term) > 1:
                return None
    labels = [np.broadcast_to(label, shape) for label in labels]
    met = rows_of(labels, length) if labels else None
    if met is None:
        return None
    index, first = met
    result = function(*(_picked(separable, lead, shape, first) for separable in values))
    return RowTable(index, np.broadcast_to(result, (len(first), length)))


def _picked(
    value: Separable | Predicate, lead: Dims, shape: tuple[int, ...], first: Array
) -> Array:
    """Return the numbers of the rows at flat positions ``first`` over the dims ``lead``."""
    is_sum = isinstance(value, Separable)
    total: Array = np.full((1, 1), value.const if isinstance(value, Separable) else True)
    for term, array in value.terms.items():
        if isinstance(array, RowTable):
            index = np.broadcast_to(aligned(array.index, term[:-1], lead), shape)
            part = array.table[index.reshape(-1)[first]]
        elif term and is_axis(term[-1]):
            part = array[None]
        else:
            part = np.broadcast_to(aligned(array, term, lead), shape).reshape(-1)[first][:, None]
        total = total + part if is_sum else total & part
    return total


def _squeezed_rows(dims: Dims, array: RowTable) -> tuple[Dims, Any]:
    if (array.table == array.table[:, :1]).all():
        return _squeezed(dims[:-1], array.table[:, 0][array.index])
    kept, index = _squeezed(dims[:-1], array.index)
    if not kept:
        return dims[-1:], array.table[index]
    return (*kept, dims[-1]), RowTable(index, array.table)


def _squeezed(dims: Dims, array: Any) -> tuple[Dims, Any]:
    """Drop the dims along which nothing changes."""
    if isinstance(array, RowTable):
        return _squeezed_rows(dims, array)
    kept: list[int] = []
    for dim in dims:
        where = len(kept)
        first = array.take([0], axis=where)
        # The second slice alone refutes most candidates.
        if array.shape[where] == 1 or (
            (array.take([1], axis=where) == first).all() and (array == first).all()
        ):
            array = array.take(0, axis=where)
        else:
            kept.append(dim)
    return tuple(kept), array


def _predicate(shape: tuple[int, ...], dims: Dims, array: Array) -> Predicate:
    """Return a predicate of one term, without the dims that it does not need."""
    dims, array = _squeezed(dims, array)
    return conjunction(shape, {dims: array})
