from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    PROGRAM,
    NotSeparableError,
    Predicate,
    Separable,
    axis_dim,
    combine,
    combine_predicates,
    compare,
    constant,
    loop_dim,
    loop_index,
    make_range,
    programs,
    select_separable,
    stack,
    stack_predicates,
    uniform,
)
from tests.tiers import examples

# One size per dim: programs, a loop, another loop, and the axes of a tile.
DIMS = (PROGRAM, loop_dim(0), loop_dim(1), axis_dim(0), axis_dim(1))
SIZES = dict(zip(DIMS, (3, 2, 4, 5, 2), strict=True))
SHAPE = (SIZES[axis_dim(0)], SIZES[axis_dim(1)])
FULL = tuple(SIZES[dim] for dim in DIMS)

Array = npt.NDArray[Any]

QUICK = examples(40)


@st.composite
def keys(draw: st.DrawFn) -> tuple[int, ...]:
    """The dims of a term: at most one axis."""
    outer = draw(st.sets(st.sampled_from(DIMS[:3])))
    axis = draw(st.sets(st.sampled_from(DIMS[3:]), max_size=1))
    return tuple(sorted(outer | axis))


@st.composite
def separables(draw: st.DrawFn, low: int = -9, high: int = 9) -> Separable:
    value = Separable(SHAPE, draw(st.integers(low, high)))
    for dims in draw(st.lists(keys(), max_size=3, unique=True)):
        shape = tuple(SIZES[dim] for dim in dims)
        numbers = draw(
            st.lists(
                st.integers(low, high), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))
            )
        )
        value += Separable(SHAPE, 0, {dims: np.array(numbers, dtype=np.int64).reshape(shape)})
    return value


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    value = Predicate(SHAPE)
    for dims in draw(st.lists(keys(), max_size=3, unique=True)):
        shape = tuple(SIZES[dim] for dim in dims)
        size = int(np.prod(shape))
        bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        value &= Predicate(SHAPE, {dims: np.array(bits).reshape(shape)})
    return value


def full(value: Separable | Predicate) -> Array:
    return np.broadcast_to(value.dense(DIMS), FULL)


@pytest.mark.adr("0004-D1")
@QUICK
@given(separables(), separables())
def test_sum_and_difference_are_those_of_the_dense_arrays(a: Separable, b: Separable) -> None:
    np.testing.assert_array_equal(full(a + b), full(a) + full(b))
    np.testing.assert_array_equal(full(a - b), full(a) - full(b))
    np.testing.assert_array_equal(full(-a), -full(a))


@QUICK
@given(separables(), separables())
def test_product_is_dense_or_refused(a: Separable, b: Separable) -> None:
    try:
        product = a * b
    except NotSeparableError:
        axes = {dim for value in (a, b) for dims in value.terms for dim in dims if dim in DIMS[3:]}
        assert len(axes) == 2
    else:
        np.testing.assert_array_equal(full(product), full(a) * full(b))


@QUICK
@given(separables())
def test_product_with_a_number_is_never_refused(a: Separable) -> None:
    np.testing.assert_array_equal(full(a * uniform(-3)), full(a) * -3)
    np.testing.assert_array_equal(full(uniform(0) * a), full(a) * 0)


@pytest.mark.parametrize(
    "function", [np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal]
)
@QUICK
@given(a=separables(-2, 2), b=separables(-2, 2))
def test_comparison_is_dense_or_refused(function: Any, a: Separable, b: Separable) -> None:
    try:
        result = compare(function, a, b)
    except NotSeparableError:
        return
    np.testing.assert_array_equal(full(result), function(full(a), full(b)))


@pytest.mark.parametrize("function", [np.less, np.less_equal, np.greater, np.greater_equal])
@QUICK
@given(limit=st.integers(-5, 40), step=st.integers(1, 8))
def test_ragged_rows_compare_as_dense_ones(function: Any, limit: int, step: int) -> None:
    offsets = programs(np.arange(6) * step) + loop_index(0, 0, 2, 3) + make_range(0, 5)
    result = compare(function, offsets, uniform(limit))
    dense = np.arange(6)[:, None, None] * step + 2 * np.arange(3)[:, None] + np.arange(5)
    expected = function(dense, limit)
    dims = (PROGRAM, loop_dim(0), axis_dim(0))
    np.testing.assert_array_equal(np.broadcast_to(result.dense(dims), (6, 3, 5)), expected)
    for where, dim in enumerate(dims):
        varies = (expected != expected.take([0], axis=where)).any()
        assert (dim in result.dims) == varies


def test_comparison_of_numbers_near_the_end_of_64_bits_does_not_wrap() -> None:
    a = uniform(2**63 - 1) + Separable((2,), 0, {(axis_dim(0),): np.array([0, -1])})
    assert compare(np.greater, a, uniform(-(2**63))).is_true


def test_a_shared_axis_cancels_in_a_comparison() -> None:
    rows = make_range(0, 4).with_shape((4, 4), {0: 0})
    columns = make_range(0, 4).with_shape((4, 4), {0: 1})
    result = compare(np.less, rows + columns, rows + uniform(2))
    assert set(result.terms) == {(axis_dim(1),)}


@QUICK
@given(separables(), separables())
def test_combine_is_dense_or_refused(a: Separable, b: Separable) -> None:
    try:
        result = combine(np.maximum, a, b)
    except NotSeparableError:
        return
    np.testing.assert_array_equal(full(result), np.maximum(full(a), full(b)))


@QUICK
@given(predicates(), separables(), separables())
def test_select_is_dense_or_refused(condition: Predicate, a: Separable, b: Separable) -> None:
    try:
        result = select_separable(condition, a, b)
    except NotSeparableError:
        return
    np.testing.assert_array_equal(full(result), np.where(full(condition), full(a), full(b)))


@QUICK
@given(predicates(), predicates())
def test_booleans_combine_as_dense_ones(a: Predicate, b: Predicate) -> None:
    np.testing.assert_array_equal(full(a & b), full(a) & full(b))
    for function in (np.logical_or, np.logical_xor):
        try:
            result = combine_predicates(function, a, b)
        except NotSeparableError:
            continue
        np.testing.assert_array_equal(full(result), function(full(a), full(b)))


@QUICK
@given(predicates())
def test_truth_of_a_predicate_is_known_where_it_claims_to_be(a: Predicate) -> None:
    if a.is_uniform:
        assert full(a).all() == a.is_true
        assert full(a).any() == a.is_true
    if a.is_true:
        assert full(a).all()


@QUICK
@given(separables())
def test_bounds_hold_every_element(a: Separable) -> None:
    low, high = a.bounds()
    assert low <= full(a).min()
    assert full(a).max() <= high


@QUICK
@given(separables(), separables())
def test_trimming_changes_no_number_and_equality_is_never_claimed_falsely(
    a: Separable, b: Separable
) -> None:
    np.testing.assert_array_equal(full(a.trimmed()), full(a))
    assert a.equals(a + uniform(0))
    if a.equals(b):
        np.testing.assert_array_equal(full(a), full(b))


@QUICK
@given(separables(), st.sampled_from(DIMS[:3]), st.data())
def test_fixing_a_dim_takes_that_slice(a: Separable, dim: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, SIZES[dim] - 1))
    slices = full(a).take([index], axis=DIMS.index(dim))
    np.testing.assert_array_equal(full(a.at(dim, index)), np.broadcast_to(slices, FULL))


@QUICK
@given(predicates(), st.sampled_from(DIMS[:3]), st.data())
def test_fixing_a_dim_of_a_predicate_takes_that_slice(
    a: Predicate, dim: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, SIZES[dim] - 1))
    slices = full(a).take([index], axis=DIMS.index(dim))
    np.testing.assert_array_equal(full(a.at(dim, index)), np.broadcast_to(slices, FULL))


@QUICK
@given(separables(), predicates(), st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_taking_programs_takes_their_rows(a: Separable, b: Predicate, rows: list[int]) -> None:
    positions = np.array(rows)
    np.testing.assert_array_equal(full(a.take_programs(positions)), full(a)[positions])
    np.testing.assert_array_equal(full(b.take_programs(positions)), full(b)[positions])


@QUICK
@given(separables(), predicates())
def test_swapping_axes_transposes(a: Separable, b: Predicate) -> None:
    for value in (a, b):
        swapped = value.with_shape(SHAPE[::-1], {0: 1, 1: 0})
        dense = np.broadcast_to(swapped.dense(DIMS), (*FULL[:3], *SHAPE[::-1]))
        np.testing.assert_array_equal(dense, full(value).swapaxes(3, 4))


@QUICK
@given(st.lists(separables(), min_size=1, max_size=4))
def test_stacking_puts_iterations_along_their_loop(values: list[Separable]) -> None:
    fixed = [value.at(loop_dim(0), 0) for value in values]
    stacked = stack(fixed, 0)
    for index, value in enumerate(fixed):
        np.testing.assert_array_equal(full(stacked.at(loop_dim(0), index)), full(value))


@QUICK
@given(st.lists(predicates(), min_size=1, max_size=4))
def test_stacking_predicates_puts_iterations_along_their_loop(values: list[Predicate]) -> None:
    fixed = [value.at(loop_dim(0), 0) for value in values]
    stacked = stack_predicates(fixed, 0)
    for index, value in enumerate(fixed):
        np.testing.assert_array_equal(full(stacked.at(loop_dim(0), index)), full(value))


def test_stacked_terms_that_turn_out_to_vary_alike_are_joined() -> None:
    counts = np.arange(3)
    same = np.repeat(counts[:, None], 4, axis=1)
    terms = {(PROGRAM,): counts, (PROGRAM, loop_dim(1)): same}
    stacked = stack([Separable((), 0, terms), Separable((), 0, terms)], 0)
    np.testing.assert_array_equal(stacked.dense((PROGRAM,)), 2 * counts)
    held = {(PROGRAM,): counts > 0, (PROGRAM, loop_dim(1)): same < 2}
    both = stack_predicates([Predicate((), held), Predicate((), held)], 0)
    np.testing.assert_array_equal(both.dense((PROGRAM,)), [False, True, False])


@QUICK
@given(st.integers(-50, 50), st.integers(-5, 5), st.integers(1, 9))
def test_loop_index_counts_in_steps(start: int, step: int, trip_count: int) -> None:
    index = loop_index(0, start, step, trip_count)
    dense = np.broadcast_to(index.dense((loop_dim(0),)), (trip_count,))
    np.testing.assert_array_equal(dense, start + step * np.arange(trip_count))


def test_what_varies_over_two_axes_at_once_is_refused() -> None:
    rows = make_range(0, 4).with_shape((4, 3), {0: 0})
    columns = make_range(0, 3).with_shape((4, 3), {0: 1})
    for function in (operator.mul, lambda a, b: compare(np.less, a, b)):
        with pytest.raises(NotSeparableError):
            function(rows, columns)


def test_one_program_or_one_iteration_leaves_no_term() -> None:
    assert programs(np.array([7])).is_uniform
    assert loop_index(3, 5, 1, 1).const == 5
    assert make_range(2, 3).is_uniform


def test_a_predicate_that_is_false_everywhere_says_so() -> None:
    mask = compare(np.less, make_range(0, 8), uniform(0))
    assert mask.is_uniform
    assert not mask.is_true
    assert not (mask & Predicate((8,))).is_true
    assert constant(True).is_true
