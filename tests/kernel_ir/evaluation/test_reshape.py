from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
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
    make_range,
    programs,
)
from kernbench.kernel_ir.evaluation.reshape import factor, reshape, reshape_predicate
from tests.tiers import examples

SHAPES = [(24,), (4, 6), (6, 4), (2, 2, 6), (1, 24), (24, 1), (4, 1, 6), (2, 12), (3, 8), (2, 3, 4)]


def spread(shape: tuple[int, ...], seed: int) -> Separable:
    """A sum of one vector per axis, the first of which differs between programs."""
    rng = np.random.default_rng(seed)
    value = Separable(shape, 5) + programs(np.array([0, 100]))
    for axis, length in enumerate(shape):
        if length > 1 and rng.integers(3):
            dims = (PROGRAM, axis_dim(axis)) if rng.integers(2) else (axis_dim(axis),)
            size = (2, length) if len(dims) == 2 else (length,)
            value += Separable(shape, 0, {dims: rng.integers(0, 3, size)})
    return value


def dense(value: Separable | Predicate) -> np.ndarray[Any, Any]:
    dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(value.shape))))
    return np.broadcast_to(value.dense(dims), (2, *value.shape))


@examples(100)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.integers(0, 1000))
def test_reshape_is_row_major_or_refused(
    source: tuple[int, ...], target: tuple[int, ...], seed: int
) -> None:
    value = spread(source, seed)
    with contextlib.suppress(NotSeparableError):
        np.testing.assert_array_equal(
            dense(reshape(value, target)), dense(value).reshape(2, *target)
        )
    mask = Predicate(source, {dims: array > 0 for dims, array in value.terms.items()})
    with contextlib.suppress(NotSeparableError):
        np.testing.assert_array_equal(
            dense(reshape_predicate(mask, target)), dense(mask).reshape(2, *target)
        )


def test_a_range_splits_into_a_sum_over_two_axes() -> None:
    result = reshape(make_range(0, 24), (4, 6))
    assert set(result.terms) == {(axis_dim(0),), (axis_dim(1),)}


def test_a_product_of_axes_does_not_split() -> None:
    squares = combine(np.multiply, make_range(0, 24), make_range(0, 24))
    with pytest.raises(NotSeparableError):
        reshape(squares, (4, 6))


def test_axes_are_matched_by_their_element_counts() -> None:
    assert factor((2, 3, 4), (6, 4)) == [((0, 1), (0,)), ((2,), (1,))]
    assert factor((4, 6), (6, 4)) == [((0, 1), (0, 1))]
