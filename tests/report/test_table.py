from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from kernbench.report import CollectiveReport, KernelReport, Peaks, RankReport, Report
from kernbench.report.idle import IdleParts
from kernbench.report.table import idle_line, print_report, verdict


def unnamed(kind: type) -> Any:
    """Return a value for every field of a part of the report, for those that tests do not name."""
    return dict.fromkeys(kind.__annotations__, 7)


def report_of(num_ranks: int) -> Report:
    ranks: list[Any] = [
        unnamed(RankReport)
        | {
            "rank": rank,
            "time_ns": 123_400,
            "compute_ns": 75_274,
            "comm_exposed_ns": 27_148 + rank,
            "idle_ns": 20_978 - rank,
            "hbm_bytes": 1_200_000_000,
            "flops": 10**12,
        }
        for rank in range(num_ranks)
    ]
    return {
        "machine": "ahbm",
        "ranks": num_ranks,
        "time_ns": 123_400,
        "wall_s": 0.31,
        "per_rank": ranks,
        "kernels": [
            unnamed(KernelReport)
            | {
                "name": "a_kernel_with_a_name_longer_than_any_table_has_room_for_it",
                "launches": 100_000,
                "time_ns": 123_456,
                "flops": 10**13,
                "bytes": 10**9,
                "utilization": 0.4321,
                "bound_by": "latency",
            }
        ],
        "collectives": [
            unnamed(CollectiveReport)
            | {
                "op": "reduce_scatter_tensor",
                "algorithm": "recursive_halving",
                "count": 12_000,
                "bytes": 4 << 30,
                "time_ns": 999_999,
            }
        ],
    }


def printed(report: Report, width: int) -> str:
    out = io.StringIO()
    print_report(report, Peaks(100_000.0, 2_000.0), Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [50, 60, 80, 120])
@pytest.mark.parametrize("num_ranks", [1, 8, 64, 1024])
def test_tables_fit_the_terminal_and_never_cut_a_number(width: int, num_ranks: int) -> None:
    text = printed(report_of(num_ranks), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "\x1b" not in text, "no colours where there is no terminal"
    for number in ("61%", "1.20 GB", "100000", "43.2%", "12000", "4.29 GB", "1.00 ms"):
        assert number in text
    assert len(text.splitlines()) < 32


def test_a_terminal_too_narrow_for_the_numbers_wraps_lines_and_cuts_none() -> None:
    assert printed(report_of(4), 20) == printed(report_of(4), 50)


def test_the_idle_line_names_the_causes_that_can_be_seen() -> None:
    report = report_of(1)  # 21.0 of 123.4 us are idle
    assert idle_line(report, IdleParts(12_340_000, 6_170_000)) == (
        "idle 17%: 10% copies and fills, 5% launching, 2% waiting"
    )
    assert idle_line(report, IdleParts(20_978_000, 0)) == "idle 17%: 17% copies and fills"
    report["per_rank"][0]["idle_ns"] = 0
    assert idle_line(report, IdleParts(0, 0)) == ""


def test_many_ranks_are_summed_up() -> None:
    lines = [line.split()[0] for line in printed(report_of(64), 80).splitlines() if line.strip()]
    assert lines[3:11] == ["0", "1", "2", "3", "+", "min", "mean", "max"]


def test_the_verdict_is_one_line() -> None:
    assert verdict(report_of(4)) == (
        "4 ranks, 123 us simulated in 0.31 s; 61% compute, 22% exposed comm, 17% idle"
    )


def test_a_run_without_device_work_says_so() -> None:
    empty = report_of(1)
    nothing: Any = {"time_ns": 0, "compute_ns": 0, "comm_exposed_ns": 0, "idle_ns": 0, "flops": 0}
    empty["per_rank"][0].update(nothing)
    empty["kernels"], empty["collectives"] = [], []
    assert printed(empty, 80).splitlines()[-1].endswith("nothing ran on the devices")
