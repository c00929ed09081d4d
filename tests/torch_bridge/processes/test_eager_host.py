"""A machine with a host section takes time for Python, for views, and by kind of operation."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from kernbench.hardware import HostSpec, load_machine
from kernbench.op_log import HostSpan
from tests.tiers import daily
from tests.torch_bridge.running import simulated

MACHINE = "a100-sxm-80g"
DAY_NS = 24 * 3600 * 10**9


@pytest.fixture(scope="module", autouse=True)
def _first_run() -> None:
    """Let PyTorch do in Python what it does once in a process, and tests before be cleared away.

    A finalizer of what they have left is a call of Python, too.
    """
    gc.collect()
    plain = ("calls", "views", "plain", "imports", "profiled", "casts", "sums", "uncast")
    for kind in (*plain, "captures", "buckets"):
        spans_of(kind, 1)


def host() -> HostSpec:
    result = load_machine(MACHINE, 1).spec.host
    assert result is not None
    return result


def spans_of(kind: str, count: int) -> list[HostSpan]:
    return simulated("eager_host.py", kind, count, machine=MACHINE, data=False).op_log.host_spans


spans_once = cache(spans_of)
"""A program's spans: two runs are the same, as a test below says."""


def time_us(kind: str, count: int, *parts: str) -> float:
    """Return the host time of a program in spans of some kinds."""
    return sum(
        span.end_ps - span.start_ps for span in spans_once(kind, count) if span.kind in parts
    ) / 1e6  # fmt: skip


def more_us(kind: str, few: int, many: int, *parts: str) -> float:
    return time_us(kind, many, *parts) - time_us(kind, few, *parts)


@pytest.mark.adr("0130-D1")
def test_a_python_call_takes_its_time_and_two_runs_are_the_same() -> None:
    assert more_us("calls", 100, 300, "python") == pytest.approx(200 * float(host().python_call_us))
    assert spans_of("calls", 100) == spans_of("calls", 100)


@pytest.mark.adr("0284-D1")
def test_all_of_the_environment_is_read_in_one_time_whatever_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = spans_of("environment", 9)
    for number in range(9):
        monkeypatch.setenv(f"KERNBENCH_TEST_{number}", "x")
    assert spans_of("environment", 9) == few
    # One variable that a program names takes the calls of Python's own code.
    seen: list[str] = []
    sys.setprofile(lambda frame, event, what: seen.append(event))
    os.environ.get("PATH")
    sys.setprofile(None)
    calls_us = seen.count("call") * float(host().python_call_us)
    assert more_us("environment", 9, 10, "python") == pytest.approx(calls_us)


@pytest.mark.adr("0284-D3")
def test_members_of_a_protocol_are_looked_for_by_name_with_any_hash_seed() -> None:
    later = [more_us("protocol", few, few + 2, "python") for few in (0, 2, 4, 6)]
    assert later == pytest.approx([later[0]] * 4)
    assert later[0] > 0


@pytest.mark.adr("0130-D2")
def test_views_cost_dispatch_and_the_bridge_own_calls_nothing() -> None:
    view_us = float(host().operation.view_us)
    assert more_us("views", 10, 30, "launch", "dispatch") == pytest.approx(20 * view_us)
    # The first of its kind, too.
    assert more_us("views", 0, 1, "launch", "dispatch") == pytest.approx(view_us)
    # Neither views nor operations of the bridge add a call; an import adds those up to its lock,
    # not the hundred that find and execute the module: 15, and 19 from Python 3.12 on.
    assert more_us("views", 10, 30, "python") == 0
    assert more_us("plain", 10, 30, "python") == 0
    assert more_us("imports", 0, 1, "python") <= 19 * float(host().python_call_us)


@pytest.mark.adr("0276-D1")
def test_a_module_is_as_many_calls_as_its_forward() -> None:
    call_us = float(host().python_call_us)
    assert more_us("modules", 10, 30, "python") == pytest.approx(20 * call_us)


@pytest.mark.adr("0276-D2")
def test_plans_and_events_take_the_host_longer_than_a_kernel() -> None:
    of = host().operation
    expected = {
        "convolution": of.planned_us,
        "group norm": of.planned_us,
        "batch norm in training": of.planned_us,
        "batch norm": of.reduction_us,
        "events": host().event_us,
    }
    for kind, expected_us in expected.items():
        each_us = more_us(kind, 10, 30, "launch", "dispatch") / 20
        assert each_us == pytest.approx(float(expected_us)), kind


@pytest.mark.adr("0130-D7")
def test_what_depends_on_addresses_or_is_done_in_c_elsewhere_is_not_counted() -> None:
    assert more_us("compared", 10, 30, "python") == 0
    assert more_us("freed", 10, 30, "python") == 0
    assert more_us("in_c", 10, 30, "python") == 0


@pytest.mark.adr("0130-D8")
def test_calls_of_several_ranks_are_counted_each_and_two_runs_are_the_same() -> None:
    def spans(count: int) -> list[HostSpan]:
        context = simulated("eager_host.py", "calls", count, nprocs=2, machine=MACHINE, data=False)
        return context.op_log.host_spans

    def python_us(host_spans: list[HostSpan], rank: int) -> float:
        mine = [span for span in host_spans if span.rank == rank and span.kind == "python"]
        return sum(span.end_ps - span.start_ps for span in mine) / 1e6

    spans(1)
    few = spans(100)
    assert few == spans(100)
    many = spans(300)
    for rank in range(2):
        more = python_us(many, rank) - python_us(few, rank)
        assert more == pytest.approx(200 * float(host().python_call_us))


@pytest.mark.adr("0130-D3")
def test_operations_cost_by_kind_and_by_what_autograd_does() -> None:
    of = host().operation
    each_us = more_us("plain", 10, 30, "launch", "dispatch") / 20
    assert each_us == pytest.approx(float(of.in_place_us))
    # Two reductions and seven elementwise operations, called by C++, as its kernels are counted.
    each_us = more_us("log_sum_exp", 10, 30, "launch", "dispatch") / 20
    parts_us = 2 * of.reduction_us + 7 * of.elementwise_us
    assert each_us == pytest.approx(float(of.reduction_us + parts_us * host().backward_share))
    each_us = more_us("recorded", 10, 30, "launch", "dispatch") / 20
    assert each_us == pytest.approx(float(of.elementwise_us + of.recorded_us))
    for kind in ("foreach", "foreach of a number"):
        tensor_us = more_us(kind, 10, 30, "launch", "dispatch") / 20
        assert tensor_us == pytest.approx(float(of.foreach_tensor_us))
    # mul of the result's gradient by 1; its kernel is launched by the engine's thread.
    spans = [span for span in spans_of("backward", 0) if span.kind == "launch"]
    in_backward = next(span for span in reversed(spans) if span.label == "aten.mul")
    whole = in_backward.end_ps - in_backward.start_ps
    expected = of.elementwise_us * host().backward_share + host().backward_node_us
    views = of.view_us * host().backward_share
    num_views = (whole / 1e6 - float(expected)) / float(views)
    assert num_views == pytest.approx(round(num_views), abs=1e-6)


@pytest.mark.adr("0130-D2")
def test_what_stands_in_for_cxx_counts_nothing_and_for_python_one_call() -> None:
    call_us = float(host().python_call_us)

    def told(*_: object) -> None:
        """Be told of collections, as Hypothesis is."""

    gc.callbacks.append(told)
    try:
        assert more_us("collected", 0, 1, "python") == 0
    finally:
        gc.callbacks.remove(told)
    assert more_us("replaced", 10, 30, "python") == 0
    # nvtx.range_push and range_pop are Python, which call C++.
    assert more_us("ranges", 10, 30, "python") == pytest.approx(20 * 2 * call_us)
    # The context is made, entered and left; record, wait_stream, default_stream and wait.
    assert more_us("streams", 10, 30, "python") == pytest.approx(20 * 7 * call_us)


@pytest.mark.adr("0130-D2")
def test_capturing_a_graph_counts_nothing_for_what_it_holds_and_replays_one_call_each() -> None:
    call_us = float(host().python_call_us)
    assert more_us("captures", 10, 30, "python") == 0
    assert more_us("replays", 10, 30, "python") == pytest.approx(20 * call_us)


@pytest.mark.adr("0130-D2")
def test_gradient_buckets_are_made_in_cxx() -> None:
    of_list_us = more_us("parameters", 2, 6, "python")
    assert more_us("buckets", 2, 6, "python") == pytest.approx(of_list_us)


@pytest.mark.adr("0130-D2")
@pytest.mark.parametrize("young", daily(5, of=(3, 5, 7, 13)))
def test_collections_of_garbage_count_nothing_whenever_they_come(young: int) -> None:
    def spans() -> list[HostSpan]:
        result = simulated("memory_use.py", "serving", machine="h100-sxm", data=False)
        return result.op_log.host_spans

    *_, expected = [spans() for _ in range(3)]
    before = gc.get_threshold()
    try:
        # As each function begins that makes one object, or one in several.
        gc.set_threshold(young, 1, 1)
        assert spans() == expected
    finally:
        gc.set_threshold(*before)


@pytest.mark.adr("0130-D2")
def test_autocast_casts_in_cxx() -> None:
    """No call of Python is counted for a cast, but its own time in C++."""
    of = host().operation
    assert more_us("casts", 10, 30, "python") == 0
    each_us = more_us("casts", 10, 30, "launch", "dispatch") / 20
    casts_us = 2 * host().cast_us
    assert each_us == pytest.approx(float(casts_us + of.product_us))
    assert more_us("sums", 10, 30, "python") == more_us("uncast", 10, 30, "python")


@pytest.mark.adr("0130-D3")
def test_reads_and_new_segments_are_parts_of_their_own() -> None:
    assert more_us("reads", 1, 4, "read") == pytest.approx(3 * float(host().read_us))
    assert more_us("segments", 1, 4, "allocate") == pytest.approx(3 * float(host().cuda_malloc_us))


def test_an_object_of_another_process_takes_its_time_and_that_of_its_tensors() -> None:
    each_us, tensor_us = float(host().message_us), float(host().message_tensor_us)
    assert more_us("messages", 0, 5, "launch", "dispatch") == pytest.approx(5 * tensor_us)
    # A batch of samples, which are a tensor and a number, is two tensors.
    more = more_us("loaded", 3, 5, "launch", "dispatch") - 2 * float(host().operation.in_place_us)
    assert more == pytest.approx(2 * (each_us + 2 * tensor_us))


@pytest.mark.adr("0130-D10", "0130-D11")
def test_a_program_that_profiles_itself_keeps_its_profile_and_is_counted_after_it() -> None:
    expected = 200 * float(host().python_call_us)
    assert more_us("profiled", 100, 300, "python") == pytest.approx(expected)


@pytest.mark.adr("0119-D6")
def test_clocks_without_a_date_show_the_same_in_every_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = []
    for _ in range(2):
        spans_of("clock", 0)
        shown.append(capsys.readouterr().out)
        time.sleep(0.01)
    assert shown[0] == shown[1]
    assert all(int(word) > DAY_NS for word in shown[0].split())


@pytest.mark.adr("0130-D5")
def test_a_machine_without_a_host_section_spends_its_launch_time_only() -> None:
    context = simulated("eager_host.py", "calls", 300, machine="ahbm:4", data=False)
    kinds = {span.kind for span in context.op_log.host_spans}
    assert kinds <= {"launch", "wait"}
    launch_ps = context.machine.sip.host_launch_ps
    launches = [span for span in context.op_log.host_spans if span.kind == "launch"]
    assert {span.end_ps - span.start_ps for span in launches} == {launch_ps}


SEEN: list[float] = []
"""What all processes share and change, as the caches of libraries."""
STARTS = """
import threading
import time
from torch.utils.data import DataLoader

start = time.perf_counter()
thread = threading.Thread(target=list)
thread.start()
thread.join()
batches = list(DataLoader(range(4), num_workers=1))
print(time.perf_counter() - start)
"""


@pytest.mark.adr("0130-D1")
def test_when_a_thread_really_starts_changes_no_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real machine decides whether a new thread runs before somebody waits for it."""
    program = tmp_path / "starts.py"
    program.write_text(STARTS)
    sleep: Any = time.sleep
    start_thread: Any = threading._start_new_thread  # type: ignore[attr-defined]

    def start(late_s: float, waits_s: float, function: Any, args: Any, *more: Any) -> Any:
        # One frame more in each: PyTorch's seeds of a worker walk its stack.
        def begin(*args: Any) -> None:
            sleep(late_s)
            function(*args)

        SEEN.extend([late_s] * (1 + len(SEEN)))
        once = start_thread(begin, args, *more)
        sleep(waits_s)
        return once

    at_once, late = partial(start, 0, 0.05), partial(start, 0.05, 0)
    said = []
    # In the first run PyTorch does what it does once.
    for item in (at_once, at_once, late):
        monkeypatch.setattr(threading, "_start_new_thread", item)
        simulated(program, machine="h100-sxm")
        said.append(capsys.readouterr().out)
    assert said[1] == said[2] != ""
