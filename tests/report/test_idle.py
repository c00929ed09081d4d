from __future__ import annotations

from kernbench.op_log import HostSpan, OpLog
from kernbench.report import IdleParts, idle_parts
from tests.logs import LogBuilder, kernel


def test_idle_time_is_copies_that_nothing_hides_then_launches_that_nothing_hides() -> None:
    builder = LogBuilder()
    # A kernel hides the last 30 of a copy's 100; a fill follows alone.
    builder.launch(kernel("load", 100, kind="copy"), 1, 1_000)
    builder.launch(kernel("gemm", 200, kind="kernel"), 1, 1_070)
    builder.launch(kernel("fill", 40, kind="fill"), 1, 1_270)
    # 1_000 of the first launch are before any work; the second is hidden but for its last 90.
    spans = [
        HostSpan(1, "launch", "load", 0, 1_000),
        HostSpan(1, "launch", "gemm", 1_100, 1_400),
        HostSpan(1, "wait", "gemm", 1_400, 1_900),
    ]
    builder.log.host_spans.extend(spans)
    assert idle_parts(builder.log) == IdleParts(copies_ps=70 + 40, launches_ps=1_000 + 90)


def test_parts_are_summed_over_ranks_and_a_rank_without_work_has_its_launches() -> None:
    builder = LogBuilder()
    builder.launch(kernel("load", 100, kind="copy"), 2, 0)
    builder.log.host_spans.append(HostSpan(0, "launch", "x", 5, 12))
    assert idle_parts(builder.log) == IdleParts(copies_ps=100, launches_ps=7)


def test_an_empty_run_has_no_idle_parts() -> None:
    assert idle_parts(OpLog()) == IdleParts(0, 0)


def test_idle_time_of_the_host_is_split_by_what_it_did() -> None:
    builder = LogBuilder()
    builder.launch(kernel("gemm", 100, kind="kernel"), 0, 1_000)
    spans = [
        HostSpan(0, "python", "Python", 0, 300),
        HostSpan(0, "dispatch", "operations without a kernel", 300, 350),
        HostSpan(0, "allocate", "cudaMalloc", 350, 600),
        HostSpan(0, "launch", "gemm", 600, 1_000),
        # The kernel hides 100 of it.
        HostSpan(0, "python", "Python", 1_000, 1_150),
        HostSpan(0, "read", "a result", 1_150, 1_170),
    ]
    builder.log.host_spans[:] = spans
    assert idle_parts(builder.log) == IdleParts(
        copies_ps=0, launches_ps=450, python_ps=350, allocations_ps=250, reads_ps=20
    )
    assert idle_parts(builder.log).of_host_ps == 450 + 350 + 250 + 20
    # From 900 on: the last 100 of the launch, the kernel hides its own time as before.
    late = idle_parts(builder.log, since_ps=900)
    assert late == IdleParts(copies_ps=0, launches_ps=100, python_ps=50, reads_ps=20)
