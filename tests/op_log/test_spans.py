from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.op_log import OpLog, build_spans, covered_ps, exposed_ps, rank_shares
from tests.logs import small_log


def test_spans_have_one_entry_per_instance_and_rank() -> None:
    spans = build_spans(small_log())
    assert spans.rank.tolist() == [0, 1, 0, 1, 0, 1]
    assert spans.instance.tolist() == [0, 1, 2, 2, 3, 4]
    assert spans.position.tolist() == [0, 0, 0, 1, 0, 0]
    assert [spans.templates[i].name for i in spans.template] == [
        *("matmul", "matmul", "all_gather", "all_gather", "gelu", "gelu")
    ]
    assert spans.start_ps.tolist() == [500_000, 500_000, 1_400_000, 1_450_000, 1_500_000, 1_500_000]


def test_the_spans_of_an_empty_log_are_empty() -> None:
    assert len(build_spans(OpLog())) == 0
    assert OpLog().end_ps == 0


def test_the_log_ends_with_its_last_work() -> None:
    assert small_log().end_ps == 1_800_000


def test_shares_sum_to_the_total() -> None:
    assert rank_shares(10, (), 4).tolist() == [3, 3, 2, 2]
    assert rank_shares(10, (7, 3), 2).tolist() == [7, 3]


intervals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda item: (item[0], sum(item))),
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
