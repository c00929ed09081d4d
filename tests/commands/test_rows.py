"""Arrays of few different rows compute as arrays of all elements."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    RowTable,
    Separable,
    axis_dim,
    compare,
    elementwise,
    split_by_rows,
)
from kernbench.commands.elementwise import _applied
from kernbench.commands.rows import rows_of

LANES = 8
_LEAD = (5, 3)
_NUMBERS = st.integers(-40, 40)


@st.composite
def tables(draw: st.DrawFn, lead: tuple[int, ...] = _LEAD) -> RowTable:
    count = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    table = rng.integers(-40, 40, size=(count, LANES))
    return RowTable(rng.integers(0, count, size=lead), table)


_PAIRS = (operator.add, operator.sub, operator.mul, operator.lt, operator.eq, np.maximum)


@given(tables(), tables(), _NUMBERS, st.sampled_from(_PAIRS), st.integers(0, 2**32 - 1))
def test_elementwise_functions_give_what_numpy_gives(
    first: RowTable, second: RowTable, number: int, function: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    others = [number, second, RowTable(first.index, first.table + 1), rng.integers(0, 9, LANES)]
    others += [rng.integers(0, 9, (*_LEAD, 1)), rng.integers(0, 9, (*_LEAD, LANES))]
    for other in others:
        expected = function(np.asarray(first), np.asarray(other))
        assert np.array_equal(np.asarray(function(first, other)), expected)
        expected = function(np.asarray(other), np.asarray(first))
        assert np.array_equal(np.asarray(function(other, first)), expected)


@given(tables())
def test_parts_and_extremes_are_those_of_all_elements(rows: RowTable) -> None:
    # Every row of a table is somewhere.
    used, index = np.unique(rows.index, return_inverse=True)
    rows = RowTable(index.reshape(_LEAD), rows.table[used])
    dense = np.asarray(rows)
    assert rows.shape == dense.shape
    assert (rows.size, rows.ndim, len(rows)) == (dense.size, dense.ndim, len(dense))
    for key in (
        *(0, (1, 2), (1, 2, 3), (..., slice(None, 1)), (slice(1, 3),), (None, ...)),
        *((slice(None), None, slice(None), slice(None)), (slice(None), 1, slice(2, 5))),
        *((np.array([2, 0]),), (..., None), (0, slice(None), 4)),
    ):
        assert np.array_equal(np.asarray(rows[key]), dense[key]), key
    for axis in (None, 0, 1, 2, -1):
        for name in ("min", "max", "any", "all"):
            expected = getattr(dense, name)(axis=axis)
            assert np.array_equal(getattr(rows, name)(axis=axis), expected), (name, axis)
        assert np.array_equal(np.max(rows, axis=axis), np.max(dense, axis=axis))
    for axis in range(3):
        assert np.array_equal(np.asarray(rows.take([1, 0], axis=axis)), dense.take([1, 0], axis))
        assert np.array_equal(np.asarray(rows.take(1, axis=axis)), dense.take(1, axis))
    assert np.array_equal(np.clip(rows, -3, 4), np.clip(dense, -3, 4))
    vector = np.arange(LANES)
    assert np.array_equal(rows.along_rows(vector), dense @ vector)


def test_an_array_that_is_added_to_is_another_one() -> None:
    rows = before = RowTable(np.array([0, 1, 0]), np.array([[1, 2], [3, 4]]))
    rows += 1
    assert np.array_equal(np.asarray(rows), [[2, 3], [4, 5], [2, 3]])
    assert np.array_equal(np.asarray(before), [[1, 2], [3, 4], [1, 2]])


def test_rows_of_that_differ_too_often_are_none() -> None:
    assert rows_of([np.arange(100)], 8) is None
    rows = rows_of([np.arange(100) % 3, np.arange(100) % 2], 8)
    assert rows is not None
    assert len(rows[1]) == 6


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "MANY", 0)
    monkeypatch.setattr(elementwise, "MANY", 0)


def _dense(value: Separable, shape: tuple[int, ...]) -> Any:
    dims = (0, 1, axis_dim(0))
    return np.broadcast_to(np.asarray(value.dense(dims)), shape)


@pytest.mark.usefixtures("_always")
@given(
    programs=st.integers(2, 60),
    trips=st.integers(1, 3),
    lanes=st.sampled_from((4, 16, 32)),
    stride=st.integers(0, 40),
    divisors=st.lists(st.integers(1, 50), min_size=1, max_size=3),
)
def test_quotients_and_remainders_of_quotients_are_numpys(
    programs: int, trips: int, lanes: int, stride: int, divisors: list[int]
) -> None:
    shape = (programs, trips, lanes)
    parts = {
        (0,): np.arange(programs) * stride,
        (1,): np.arange(trips) * 7,
        (axis_dim(0),): np.arange(lanes),
    }
    value = Separable((lanes,), 3, {k: v for k, v in parts.items() if v.size > 1})
    expected = _dense(value, shape)
    for at, divisor in enumerate(divisors):
        result = split_by_rows(value, divisor)
        if result is None:  # It no longer varies over programs and elements.
            return
        for item, wanted in zip(result, np.divmod(expected, divisor), strict=True):
            assert np.array_equal(_dense(item, shape), wanted)
            low, high = item.bounds()
            assert low <= wanted.min()
            assert high >= wanted.max()
        both = _applied(np.maximum, value.dims, result[0], result[1])
        assert np.array_equal(
            np.broadcast_to(np.asarray(both), shape if len(value.dims) == 3 else both.shape),
            np.maximum(*np.divmod(expected, divisor)) if len(value.dims) == 3 else np.asarray(both),
        )
        less = compare(np.less, result[0], result[1] + Separable((), 2))
        wanted = np.less(expected // divisor, expected % divisor + 2)
        held = np.broadcast_to(np.asarray(less.dense((0, 1, axis_dim(0)))), shape)
        assert np.array_equal(held, wanted)
        value, expected = result[at % 2], np.divmod(expected, divisor)[at % 2]


def test_a_large_kernel_that_divides_holds_few_rows() -> None:
    block, programs = 1024, 12 * 1024 * 50257 // 1024
    value = Separable(
        (block,), 0, {(0,): np.arange(programs) * block, (axis_dim(0),): np.arange(block)}
    )
    result = split_by_rows(value, 50257)
    assert result is not None
    for item in result:
        assert sum(array.nbytes for array in item.terms.values()) < 100e6
    quotient, remainder = result
    for program in (0, 49, 50, 12345, programs - 1):
        index = program * block + np.arange(block)
        assert np.array_equal(quotient.at(0, program).dense((axis_dim(0),)), index // 50257)
        assert np.array_equal(remainder.at(0, program).dense((axis_dim(0),)), index % 50257)
    assert remainder.bounds() == (0, 50256)
