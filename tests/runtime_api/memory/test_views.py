"""Views against numpy, which has the same rules for strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.runtime_api.memory.views import (
    contiguous_strides,
    expanded_strides,
    has_overlap,
    indexed,
    infer_shape,
    is_basic_index,
    is_contiguous,
    reshaped_strides,
)

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
full_shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def look(flat: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]):
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [4 * stride for stride in strides])


@given(full_shapes)
def test_contiguous_strides_are_numpys(shape: tuple[int, ...]) -> None:
    assert contiguous_strides(shape) == strides_of(np.zeros(shape, dtype=np.int32))


@given(shapes, st.randoms())
def test_contiguity_is_numpys(shape: tuple[int, ...], random) -> None:
    array = np.zeros(shape, dtype=np.int32)
    array = array.transpose(random.sample(range(array.ndim), array.ndim))
    assert is_contiguous(array.shape, strides_of(array)) == array.flags.c_contiguous


@st.composite
def index_of(draw: st.DrawFn, shape: tuple[int, ...]):
    items: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        kinds = ["slice", "int"] if size else ["slice"]
        if draw(st.sampled_from(kinds)) == "int":
            items.append(draw(st.integers(-size, size - 1)))
        else:
            bound = st.none() | st.integers(-size - 1, size + 1)
            items.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3))))
    for extra in draw(st.lists(st.sampled_from([None]), max_size=2)):
        items.insert(draw(st.integers(0, len(items))), extra)
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    return tuple(items)


@given(st.data(), shapes)
def test_a_basic_index_selects_what_numpy_selects(data, shape: tuple[int, ...]) -> None:
    index = data.draw(index_of(shape))
    flat = np.arange(max(int(np.prod(shape)), 1) + 1, dtype=np.int32)
    array = flat[: int(np.prod(shape))].reshape(shape)
    try:
        expected = array[index]
    except IndexError:
        with pytest.raises(IndexError):
            indexed(0, shape, contiguous_strides(shape), index)
        return
    offset, new_shape, strides = indexed(0, shape, contiguous_strides(shape), index)
    assert new_shape == expected.shape
    if expected.size:
        assert np.array_equal(look(flat, offset, new_shape, strides), expected)
    assert is_basic_index(index)


@given(st.data(), full_shapes)
def test_a_reshape_without_a_copy_shows_what_numpy_shows(data, shape: tuple[int, ...]) -> None:
    flat = np.arange(int(np.prod(shape)), dtype=np.int32)
    array = flat.reshape(shape).transpose(data.draw(st.permutations(range(len(shape)))))
    factors = [f for size in array.shape for f in ([2, 2] if size == 4 else [size])]
    factors = data.draw(st.permutations([*factors, 1]))
    new_shape: list[int] = []
    for factor in factors:
        if new_shape and data.draw(st.booleans()):
            new_shape[-1] *= factor
        else:
            new_shape.append(factor)
    strides = reshaped_strides(array.shape, strides_of(array), tuple(new_shape))
    expected = array.reshape(new_shape)
    if strides is None:
        assert not np.shares_memory(expected, flat)
    else:
        assert np.array_equal(look(flat, 0, tuple(new_shape), strides), expected)
        if not np.shares_memory(expected, flat):
            raise AssertionError("numpy needs a copy where we found none")


@given(full_shapes, full_shapes)
def test_expanding_is_numpys_broadcast_to(
    shape: tuple[int, ...], new_shape: tuple[int, ...]
) -> None:
    array = np.zeros(shape, dtype=np.int32)
    try:
        expected = np.broadcast_to(array, new_shape)
    except ValueError:
        with pytest.raises(UsageError, match="cannot be expanded"):
            expanded_strides(shape, contiguous_strides(shape), new_shape)
        return
    strides = expanded_strides(shape, contiguous_strides(shape), new_shape)
    for mine, numpys, size in zip(strides, strides_of(expected), new_shape, strict=True):
        assert size == 1 or mine == numpys
    assert has_overlap(new_shape, strides) == (expected.size > array.size)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1, -1), "may have one -1"),
        ((-2, 3), "may have one -1"),
        ((5, -1), "does not divide 12"),
        ((5,), "holds 5 elements, but the tensor has 12"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        infer_shape(shape, 12)


@pytest.mark.parametrize(
    ("index", "error"),
    [(4, IndexError), ((0, 0, 0), IndexError), (slice(None, None, -1), UsageError)],
)
def test_an_index_outside_is_refused(index, error: type[Exception]) -> None:
    with pytest.raises(error):
        indexed(0, (4, 2), (2, 1), index)


@pytest.mark.parametrize("index", [[0, 1], np.array([0]), True, (0, np.array([True]))])
def test_index_arrays_are_not_basic(index) -> None:
    assert not is_basic_index(index)
