from __future__ import annotations

from kernbench.op_log import OpLog, build_spans, rank_shares
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
