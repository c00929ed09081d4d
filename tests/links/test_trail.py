"""Rows of collectives: the order in which they stand, whatever their numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.links.trail import _order_by

_NUMBERS = st.one_of(st.integers(-2, 3), st.integers(-(2**60), 2**60))


@given(st.lists(st.tuples(_NUMBERS, _NUMBERS, st.integers(0, 3)), max_size=40))
def test_rows_are_ordered_by_their_columns_in_turn(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [
        np.zeros(0, np.int64)
    ] * 3
    expected = sorted(range(len(rows)), key=lambda place: rows[place])
    assert _order_by(*columns).tolist() == expected
