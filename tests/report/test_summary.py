from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import Engine
from kernbench.hardware import load_machine
from kernbench.op_log import HostSpan, OpLog, Window, build_spans
from kernbench.report import (
    CollectiveReport,
    KernelReport,
    RankReport,
    Report,
    build_report,
    kernels_within,
    peaks_of,
)
from kernbench.report.summary import to_ns
from tests.logs import LogBuilder, kernel, ring, small_log

MACHINE = load_machine("ahbm:2")


def test_the_report_of_a_small_run_by_hand() -> None:
    report = build_report(small_log(), MACHINE, ranks=2, wall_s=0.25)
    # Kernels run 0.5..1.5 and 1.5..1.8 us; the all-gather 1.4 (1.45)..1.55 us is all hidden.
    first, second = report["per_rank"]
    assert first == {
        "rank": 0,
        "time_ns": 1_800,
        "compute_ns": 1_300,
        "comm_exposed_ns": 0,
        "idle_ns": 500,
        "hbm_bytes": 2 * 4_000 + 512,
        "flops": 6_080,
    }
    assert second == first | {"rank": 1}
    assert report["collectives"] == [
        {"op": "all_gather", "algorithm": "ring", "count": 1, "bytes": 1_024, "time_ns": 100}
    ]
    assert [item["name"] for item in report["kernels"]] == ["matmul", "gelu"]
    assert report["kernels"][0]["launches"] == 2
    assert report["kernels"][0]["time_ns"] == 2_000
    assert (report["machine"], report["ranks"]) == ("ahbm", 2)
    assert (report["time_ns"], report["wall_s"]) == (1_800, 0.25)


@pytest.mark.adr("0010-D1")
def test_the_keys_are_the_documented_ones_and_json_takes_them() -> None:
    report = json.loads(json.dumps(build_report(small_log(), MACHINE, ranks=2, wall_s=0.1)))
    page = (Path(__file__).parents[2] / "docs" / "reading-a-run.md").read_text(encoding="utf-8")
    for part, kind in (
        (report, Report),
        (report["per_rank"][0], RankReport),
        (report["kernels"][0], KernelReport),
        (report["collectives"][0], CollectiveReport),
    ):
        # Of a machine without measurements and price, and a program without steps.
        left_out = {"accuracy", "range", "cost_usd", "steps"}
        assert list(part) == [
            annotation for annotation in kind.__annotations__ if annotation not in left_out
        ]
        assert [key for key in part if f"`{key}`" not in page] == []


@pytest.mark.adr("0010-D2")
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 10**7), st.integers(1, 10**6)),
        max_size=15,
    )
)
def test_the_parts_of_every_rank_sum_to_its_time_to_the_picosecond(
    work: list[tuple[bool, int, int, int]],
) -> None:
    builder = LogBuilder()
    for is_kernel, rank, start_ps, duration_ps in work:
        if is_kernel:
            builder.launch(kernel("k", duration_ps), rank, start_ps)
        else:
            ranks = (rank, (rank + 1) % 3)
            builder.collective(ring(2, step_ps=duration_ps), ranks, (start_ps, start_ps + 7))
    report = build_report(builder.log, MACHINE, ranks=3, wall_s=0)
    for item in report["per_rank"]:
        parts = (item["compute_ns"], item["comm_exposed_ns"], item["idle_ns"])
        assert all(part >= 0 for part in parts)
        assert sum(round(1000 * part) for part in parts) == round(1000 * item["time_ns"])
    assert report["time_ns"] == max(entry["time_ns"] for entry in report["per_rank"])


def test_sums_of_the_report_are_the_sums_of_the_rows() -> None:
    log = small_log()
    report, table = build_report(log, MACHINE, ranks=2, wall_s=0), log.to_arrow()
    assert sum(item["flops"] for item in report["per_rank"]) == pc.sum(table["flops"]).as_py()
    assert sum(item["hbm_bytes"] for item in report["per_rank"]) == pc.sum(table["bytes"]).as_py()


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 99)), max_size=9),
    st.integers(1, 99),
)
def test_parts_of_a_run_divide_its_launches(
    launches: list[tuple[str, int, int]], edge_ps: int
) -> None:
    builder = LogBuilder()
    for name, rank, start_ps in launches:
        builder.launch(kernel(name, 50_000), rank, start_ps)
    spans = build_spans(builder.log)
    halves = [
        {
            report["name"]: (report["launches"], report["time_ns"])
            for report in kernels_within(spans, MACHINE, Window({0: [interval], 1: [interval]}))
        }
        for interval in ((0, edge_ps), (edge_ps, 100))
    ]
    for name in "ab":
        for half, is_in in zip(halves, (range(edge_ps), range(edge_ps, 100)), strict=True):
            number = sum(called == name and begun in is_in for called, _, begun in launches)
            assert half.get(name, (0, 0)) == (number, number * 50)


@pytest.mark.adr("0010-D3")
def test_utilization_is_the_roofline_bound_over_the_time() -> None:
    peaks = peaks_of(MACHINE)
    flops, time_ns = round(peaks.flops_per_ns * 250), 1_000
    builder = LogBuilder()
    builder.launch(kernel("gemm", 1_000 * time_ns, flops), 0, 0)
    size = round(peaks.hbm_bytes_per_ns * 500)
    builder.launch(kernel("copy", 1_000 * time_ns, 0, hbm_bytes=size), 0, 10**6)
    builder.launch(kernel("exact", 1_000 * time_ns, bound_ps=900_000), 0, 2 * 10**6)
    report = build_report(builder.log, MACHINE, ranks=1, wall_s=0)
    used = {item["name"]: item["utilization"] for item in report["kernels"]}
    assert used == pytest.approx({"gemm": 0.25, "copy": 0.5, "exact": 0.9}, abs=1e-3)


def test_shares_of_a_collective_are_uneven_where_the_template_says_so() -> None:
    builder = LogBuilder()
    template = kernel("broadcast", kind="collective", hbm_bytes=9, hbm_bytes_by_rank=(7, 2))
    builder.collective(template, (1, 0), (0, 0))
    report = build_report(builder.log, MACHINE, ranks=2, wall_s=0)
    assert [item["hbm_bytes"] for item in report["per_rank"]] == [2, 7]


def test_waiting_for_a_late_rank_is_exposed_but_not_time_of_the_collective() -> None:
    builder = LogBuilder()
    builder.collective(ring(2, step_ps=1_000_000), (0, 1), (0, 5_000_000))
    report = build_report(builder.log, MACHINE, ranks=2, wall_s=0)
    assert [item["comm_exposed_ns"] for item in report["per_rank"]] == [6_000, 1_000]
    assert report["collectives"][0]["time_ns"] == 1_000


def test_an_empty_run_and_a_run_of_the_host_only() -> None:
    report = build_report(OpLog(), MACHINE, ranks=2, wall_s=0)
    assert [item["time_ns"] for item in report["per_rank"]] == [0, 0]
    assert (report["kernels"], report["collectives"]) == ([], [])
    log = OpLog()
    log.host_spans.append(HostSpan(1, "wait", "", 0, 1_500))
    report = build_report(log, MACHINE, ranks=2, wall_s=0, time_ps=2_000)
    assert (report["time_ns"], report["per_rank"][1]["idle_ns"]) == (2, 1.5)


def test_a_kernel_that_takes_no_time_has_no_utilization() -> None:
    builder = LogBuilder()
    builder.launch(kernel("nothing", 0, engine_busy_ps={Engine.GEMM: 0}), 0, 0)
    report = build_report(builder.log, MACHINE, ranks=1, wall_s=0)
    assert report["kernels"][0]["utilization"] == 0.0


@given(st.integers(0, 10**15))
def test_nanoseconds_are_exact(time_ps: int) -> None:
    assert round(to_ns(time_ps) * 1000) == time_ps
    assert len(json.dumps(to_ns(time_ps)).partition(".")[2]) <= 3
