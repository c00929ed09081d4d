"""The bytes of an access: sums of small sets against a listing of every lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import PROGRAM, Predicate, Separable, axis_dim, loop_dim
from kernbench.sanitizer.facts.lanes import (
    access_spans,
    covers,
    first_common,
    flagged_spans,
    strided_spans,
)
from tests.tiers import daily

SIZES = {PROGRAM: 3, loop_dim(0): 2, axis_dim(0): 4, axis_dim(1): 3}
DIMS = tuple(SIZES)


@st.composite
def terms(draw: Any, numbers: bool, many_axes: bool) -> dict[tuple[int, ...], Any]:
    result = {}
    for _ in range(draw(st.integers(0, 4))):
        dims = tuple(sorted(draw(st.sets(st.sampled_from(DIMS), min_size=1, max_size=3))))
        if not many_axes and len([dim for dim in dims if dim >= axis_dim(0)]) > 1:
            continue
        shape = tuple(SIZES[dim] for dim in dims)
        count = int(np.prod(shape))
        if numbers:
            values = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
            result[dims] = np.array(values, np.int64).reshape(shape) * draw(
                st.sampled_from([1, 2, 4, 16])
            )
        else:
            flags = draw(st.lists(st.booleans(), min_size=count, max_size=count))
            result[dims] = np.array(flags, np.bool_).reshape(shape)
    return result


def bytes_of(spans: Any) -> set[int]:
    return {byte for low, high in spans.tolist() for byte in range(low, high)}


@given(
    terms(numbers=True, many_axes=False),
    terms(numbers=False, many_axes=True),
    st.integers(-9, 9),
    st.sampled_from([1, 2, 4]),
)
def test_the_spans_of_an_access_are_the_bytes_of_its_active_lanes(
    numbers: Any, flags: Any, const: int, itemsize: int
) -> None:
    offset, mask = Separable((4, 3), const, numbers), Predicate((4, 3), flags)
    spans = access_spans(offset, mask, itemsize)
    where, active = np.broadcast_arrays(
        offset.dense(DIMS), mask.dense(DIMS) & np.ones((3, 2, 4, 3), np.bool_)
    )
    expected = {start + byte for start in where[active].tolist() for byte in range(itemsize)}
    assert bytes_of(spans) == expected
    # Disjoint and rising, with a gap between neighbours.
    assert (np.diff(spans.reshape(-1)) > 0).all()


@pytest.mark.parametrize("blocks", daily(16, of=(16, 64)))
def test_the_spans_of_a_matrix_of_blocks_are_found_without_listing_lanes(blocks: int) -> None:
    """4096 programs of 128 x 64 lanes in 128 iterations are 2^32 lanes."""
    size = blocks * 128
    rows = np.arange(blocks**2) // blocks * 128 * size
    offset = Separable(
        (128, 64),
        0,
        {
            (PROGRAM,): rows,
            (axis_dim(0),): np.arange(128) * size,
            (axis_dim(1),): np.arange(64),
            (loop_dim(0),): np.arange(size // 64) * 64,
        },
    )
    assert access_spans(offset * Separable((), 2), Predicate((128, 64)), 2).tolist() == [
        [0, size * size * 2]
    ]


flag_lists = st.lists(st.booleans(), min_size=1, max_size=24)


@given(flag_lists, flag_lists)
def test_what_two_sets_share_is_found(a: list[bool], b: list[bool]) -> None:
    left, right = flagged_spans(np.array(a)), flagged_spans(np.array(b))
    shared = sorted(bytes_of(left) & bytes_of(right))
    assert first_common(left, right) == (shared[0] if shared else None)
    assert covers(left, right) == (bytes_of(right) <= bytes_of(left))


def test_the_spans_of_a_view_are_its_elements() -> None:
    assert strided_spans(2, (2, 3), (8, 1), 4).tolist() == [[8, 20], [40, 52]]
    assert strided_spans(5, (2, 0), (8, 1), 4).tolist() == []
    assert strided_spans(5, (), (), 2).tolist() == [[10, 12]]
