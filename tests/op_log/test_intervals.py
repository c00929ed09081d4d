from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.op_log import covered_ps, exposed_ps

intervals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda each: (each[0], sum(each))),
    max_size=12,
)


def points(given_intervals: list[tuple[int, int]]) -> set[int]:
    """Oracle: every picosecond on its own."""
    return {t for start, end in given_intervals for t in range(start, end)}


def columns(given_intervals: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(given_intervals, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@given(intervals)
def test_covered_time_equals_counting_each_picosecond(
    given_intervals: list[tuple[int, int]],
) -> None:
    assert covered_ps(*columns(given_intervals)) == len(points(given_intervals))


@given(intervals, intervals)
def test_exposed_time_equals_a_difference_of_sets(
    talking: list[tuple[int, int]], computing: list[tuple[int, int]]
) -> None:
    expected = len(points(talking) - points(computing))
    assert exposed_ps(*columns(talking), *columns(computing)) == expected
