from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.ops.base.layout import (
    Walk,
    block,
    broadcast_shape,
    broadcast_strides,
    build_walk,
    contiguous_strides,
)
from tests.ops.arrays import broadcasting_shapes, layouts, shapes


def offsets(walk: Walk, operand: int) -> list[int]:
    strides = walk.strides[operand]
    return [
        sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in np.ndindex(*walk.shape)
    ]


@given(broadcasting_shapes(3))
def test_shapes_broadcast_as_in_numpy(given_shapes: list[tuple[int, ...]]) -> None:
    assert broadcast_shape(*given_shapes) == np.broadcast_shapes(*given_shapes)


@given(shapes, shapes)
def test_what_numpy_does_not_broadcast_is_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(UsageError, match="do not broadcast"):
            broadcast_shape(a, b)
    else:
        assert broadcast_shape(a, b) == expected


@pytest.mark.adr("0014-D2")
@given(st.data(), broadcasting_shapes(2))
def test_a_walk_visits_each_operand_in_the_order_of_its_view(
    data: st.DataObject, given_shapes: list[tuple[int, ...]]
) -> None:
    full = broadcast_shape(*given_shapes)
    views = []
    for shape in given_shapes:
        order, steps = data.draw(layouts(shape))
        memory = np.arange(np.prod([n * 2 for n in shape], dtype=int)).reshape(
            tuple(shape[dim] * 2 for dim in order)
        )
        view = memory[tuple(slice(None, shape[dim] * steps[dim], steps[dim]) for dim in order)]
        views.append(view.transpose(tuple(order.index(dim) for dim in range(len(order)))))
    walk = build_walk(
        full,
        *(broadcast_strides(v.shape, tuple(s // 8 for s in v.strides), full) for v in views),
    )
    assert all(size > 1 for size in walk.shape)
    for operand, view in enumerate(views):
        assert offsets(walk, operand) == np.broadcast_to(view, full).ravel().tolist()
    padded = walk.padded()
    assert len(padded.shape) == 4
    assert offsets(padded, 0) == offsets(walk, 0)


@given(shapes)
def test_contiguous_operands_are_one_run(shape: tuple[int, ...]) -> None:
    strides = contiguous_strides(shape)
    assert build_walk(shape, strides, strides).is_flat


def test_more_than_four_dims_that_do_not_merge_are_refused() -> None:
    shape = (2, 3, 2, 3, 2)
    strides = tuple(2 * stride for stride in contiguous_strides((3, 5, 5, 5, 5)))
    with pytest.raises(UsageError, match="over 5 dims that do not merge"):
        build_walk(shape, strides).padded()


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 16), (1, 16), (16, 16), (17, 32), (100, 128), (5000, 128)]
)
def test_blocks_are_powers_of_two_within_bounds(size: int, expected: int) -> None:
    assert block(size, 16, 128) == expected
