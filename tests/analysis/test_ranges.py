"""A run's steps are found, and what is said of parts of it adds up to what is said of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import RuntimeContext, ops
from kernbench.analysis import attribution, critical_path, memory_use, part_of, program_lines
from kernbench.errors import UnknownNameError, UsageError
from kernbench.op_log import (
    DeviceTimes,
    HostRange,
    OpLog,
    Window,
    energy_of,
    find_steps,
    joined,
    range_names,
)
from tests.tiers import examples

RANKS, STEPS = 2, 4


def steps(rank: int, torch: Any, name: str) -> None:
    """Rank 1 computes longer, copies overlap kernels, and hosts run ahead of their devices."""
    torch.distributed.init_process_group(blocking_wait=False)
    side = torch.ahbm.Stream()
    x = torch.randn(64, 64)
    for step in range(STEPS):
        begun_ps = torch.run.simulation.now_ps
        for _ in range(1 + 2 * rank + (step == 0)):
            x = x @ x
        with torch.ahbm.stream(side):
            ops.gelu(torch.randn(64, 64))
        torch.distributed.all_reduce(x)
        if step % 2:
            torch.ahbm.synchronize()
        ended_ps = torch.run.simulation.now_ps
        torch.op_log.host_ranges.append(HostRange(rank, name.format(step), begun_ps, ended_ps))


@cache
def example(name: str = "step {}") -> RuntimeContext:
    machine = "h100-sxm:2"
    with RuntimeContext(
        machine=machine, ranks=RANKS, record_lines=True, record_memory=True, check=False
    ) as torch:
        torch.multiprocessing.spawn(steps, (torch, name), nprocs=RANKS)
    return torch


def spent(torch: RuntimeContext, within: Window | None = None) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for item in attribution(torch.op_log, torch.machine, RANKS, within):
        counts[item.rank, item.resource, item.name, item.site, item.detail] += item.time_ps
    return counts


def path(log: OpLog, within: Window | None = None) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for item in critical_path(log, within):
        counts[item.rank, item.kind, item.name, item.launch] += item.duration_ps
    return counts


def lines(log: OpLog, within: Window | None = None) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for item in program_lines(log, RANKS, within)["lines"]:
        for what, value in item.items():
            if what not in ("file", "line"):
                counts[item["file"], item["line"], what] += round(1000 * value)  # type: ignore[operator]
    return counts


def cut(times: list[list[int]], end_ps: int) -> list[Window]:
    """Return windows that make up a run, from where each rank's time is cut."""
    edges = [[0, *sorted(time), end_ps] for time in times]
    return [
        Window({rank: [(edges[rank][k], edges[rank][k + 1])] for rank in range(RANKS)})
        for k in range(len(edges[0]) - 1)
    ]


@pytest.mark.adr("0260-D1")
@examples(12)
@given(cuts=st.lists(st.floats(0, 1), min_size=RANKS * 3, max_size=RANKS * 3))
def test_parts_of_a_run_add_up_to_it_to_the_picosecond(cuts: list[float]) -> None:
    torch = example()
    log = torch.op_log
    times = [round(item * log.end_ps) for item in cuts]
    windows = cut([times[:3], times[3:]], log.end_ps)
    for of in (lambda w=None: spent(torch, w), lambda w=None: path(log, w)):
        whole: Counter[Any] = of()
        parts: Counter[Any] = Counter()
        for window in windows:
            parts.update(of(window))
        assert {k: v for k, v in parts.items() if v} == whole
    for window in windows:
        total = sum(spent(torch, window).values())
        assert total == sum(window.length_ps(rank) for rank in range(RANKS))


@pytest.mark.adr("0260-D1")
def test_steps_and_the_rest_add_up_for_lines_and_energy() -> None:
    torch = example()
    log = torch.op_log
    steps = find_steps(log)
    assert steps is not None
    windows = [steps.startup, *(step.window for step in steps.steps)]
    windows.append(joined(windows).outside(log.end_ps))
    parts: Counter[Any] = Counter()
    for window in windows:
        parts.update(lines(log, window))
    assert {k: v for k, v in parts.items() if v} == {k: v for k, v in lines(log).items() if v}
    whole: Any = energy_of(log, torch.machine, RANKS)
    value: Any = [energy_of(log, torch.machine, RANKS, within=window) for window in windows]
    for name, joules in whole["parts_j"].items():
        assert sum(e["parts_j"].get(name, 0) for e in value) == pytest.approx(joules, rel=1e-9)
    assert max(max(r["peak_w"] for r in e["per_rank"]) for e in value) == max(
        rank["peak_w"] for rank in whole["per_rank"]
    )
    peaks = [memory_use(log, within=window)["peak"]["bytes"] for window in windows[:-1]]
    assert max(peaks) == memory_use(log)["peak"]["bytes"]


@pytest.mark.adr("0260-D2")
def test_a_step_ends_when_the_device_has_done_what_was_launched_in_it() -> None:
    log = example().op_log
    steps = find_steps(log)
    assert steps is not None
    assert [step.name for step in steps.steps] == [f"step {k}" for k in range(STEPS)]
    times = DeviceTimes(log)
    for rank in range(RANKS):
        own = sorted(x for step in steps.steps for x in step.window.intervals(rank))
        assert all(a[1] <= b[0] for a, b in pairwise(own))
        ends = [host_range.end_ps for host_range in log.host_ranges if host_range.rank == rank]
        # Nothing that runs between the end of a step and what its device has done is of the next.
        assert [end for _, end in own] == [times.done_ps(rank, end) for end in ends]
        assert any(end > host for (_, end), host in zip(own, ends, strict=True))
    lengths = sorted(step.window.mean_ps for step in steps.steps[1:])
    assert steps.steps[steps.steady].window.mean_ps == lengths[(len(lengths) - 1) // 2]


@pytest.mark.adr("0260-D3")
@pytest.mark.parametrize(
    ("name", "found_by", "names"),
    [
        ("ProfilerStep#{}", "ranges ProfilerStep#", "ProfilerStep#0"),
        ("Optimizer.step#AdamW.step", "calls of optimizer.step", "step 0"),
        ("my batch", "ranges my batch", "step 0"),
        ("forward", None, ""),
    ],
)
def test_steps_are_found_by_what_a_program_names(
    name: str, found_by: str | None, names: str
) -> None:
    log = example(name).op_log
    steps = find_steps(log)
    assert (None if steps is None else steps.found_by) == found_by
    if steps is not None:
        assert (steps.steps[0].name, len(steps.steps)) == (names, STEPS)
    assert part_of(log, range_names(log)[0]).window is not None


@pytest.mark.adr("0260-D3")
def test_a_part_is_named_or_counted_and_a_step_may_begin_at_a_line() -> None:
    log = example().op_log
    steps = find_steps(log)
    assert steps is not None
    steady = part_of(log)
    assert steady.name == steps.steps[steps.steady].name
    assert part_of(log, is_steady=False).window is part_of(log, "all").window is None
    parts: dict[str, Callable[[], Any]] = {
        "step 1": lambda: part_of(log, "step 1"),
        "step 1 to step 3": lambda: part_of(log, steps="1:"),
        "step 3": lambda: part_of(log, steps="-1"),
        "start-up": lambda: part_of(log, "start-up"),
        "rest": lambda: part_of(log, "rest"),
    }
    for name, part in parts.items():
        assert part().name == name
    source = Path(__file__).read_text().splitlines()
    line = 1 + next(k for k, text in enumerate(source) if "side):" in text and "with" in text)
    at_line = part_of(log, f"{Path(__file__).name}:{line + 1}", "0:")
    assert at_line.window is not None
    assert f"of {STEPS} steps" in at_line.said
    # As a profiler leaves it behind the last step.
    last_ps = log.end_ps
    log.host_ranges += [HostRange(rank, "step 9", last_ps, last_ps) for rank in range(RANKS)]
    more = find_steps(log)
    del log.host_ranges[-RANKS:]
    assert more is not None
    assert len(more.steps) == STEPS
    for wrong, count, said in (
        ("step 9", None, "is called 'step 9'; its ranges are step 0, step 1"),
        (None, "9", "--steps 9 are none of its 4 steps, 0 to 3"),
        (None, "x", "takes a number or a slice such as 3"),
        ("none.py:3", None, "which caused nothing; no line did twice"),
    ):
        with pytest.raises((UnknownNameError, UsageError), match=said):
            part_of(log, wrong, count)
    with pytest.raises(UsageError, match="no steps were found"):
        part_of(example("forward").op_log, steps="1:")
    here = Path(__file__).name
    known = rf"{here}:{line}, .*: .*{line + 1} \({STEPS} times\)"
    with pytest.raises(UnknownNameError, match=known):
        part_of(log, f"{here}:{line}")


@pytest.mark.adr("0260-D3")
def test_steps_that_begin_at_a_line_are_found_in_a_run_that_is_done_again() -> None:
    """It knows no lines; the commands of a step are the same."""
    log = example().op_log
    source = Path(__file__).read_text().splitlines()
    line = 1 + next(k for k, text in enumerate(source) if "x = x @ x" in text)
    found = find_steps(log, (Path(__file__).name, line))
    assert found is not None
    done_again = copy(log)
    done_again.program_lines = None
    again = found.again(done_again)
    assert again is not None
    lengths = [sum(item.window.mean_ps for item in steps.steps) for steps in (found, again)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.05)
