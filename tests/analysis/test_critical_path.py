"""The critical path: whole, made of what each thing waited for, and nothing off it matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import RuntimeContext, ops
from kernbench.analysis import Segment, critical_path
from kernbench.clock import Handle, Stream, StreamCommand
from kernbench.op_log import OpLog, Template
from kernbench.runtime_api import Run

US = 10**6
LAUNCH_PS = 2 * US
"""What a launch costs the host of ahbm."""


def assert_whole(log: OpLog) -> list[Segment]:
    """Return the path, whose segments must follow each other from 0 to the end of the log."""
    path = critical_path(log)
    edges = [0, *(segment.end_ps for segment in path)]
    assert [segment.start_ps for segment in path] == edges[:-1]
    assert edges[-1] == log.end_ps
    return path


class Timed(StreamCommand):
    """A command of a given time, which nothing slows down."""

    def __init__(self, run: Run, queue: Stream, name: str, time_ps: int) -> None:
        super().__init__(run.simulation.env, name)
        self._run, self._queue, self._rank = run, queue, run.rank_state.rank
        self._template = Template(name, "kernel", "", time_ps, 0, 0, {}, 0, dict)

    def begin(self) -> int:
        return self._template.duration_ps

    def finish(self) -> None:
        rank, times = self._rank, (self.start_ps, self.end_ps)
        self.ended_by = self._run.recorder.command(
            self._template, rank, rank, *times, self._queue.name, self.after
        )


@dataclass(frozen=True)
class Step:
    """What a program does: a command on a stream, behind an earlier one, awaited by the host."""

    stream: int
    time_ps: int
    behind: int | None
    waits: bool


steps = st.lists(
    st.builds(
        Step,
        st.integers(0, 2),
        st.integers(0, 9).map(lambda us: us * US),
        st.none() | st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


def run_steps(program: list[Step], free: int | None = None) -> OpLog:
    """Run a program whose command number ``free`` takes no time."""
    with RuntimeContext(machine="ahbm:1") as context:
        run = context.run
        streams = [run.new_stream(0) for _ in range(3)]
        commands: list[Handle] = []
        for number, step in enumerate(program):
            stream = streams[step.stream]
            if step.behind is not None and step.behind < number:
                stream.wait_handle(commands[step.behind])
            time_ps = 0 if number == free else step.time_ps
            command = Timed(run, stream.queue, str(number), time_ps)
            run.pass_launch_time(run.rank_state, str(number))
            run.enqueue(stream.queue, command)
            commands.append(command)
            if step.waits:
                run.wait(command)
    return context.op_log


@pytest.mark.adr("0153-D4")
@given(steps)
def test_what_is_not_on_the_path_may_be_free_and_the_run_ends_as_before(
    program: list[Step],
) -> None:
    log = run_steps(program)
    on_path = {segment.name for segment in assert_whole(log) if segment.kind == "kernel"}
    for number, step in enumerate(program):
        faster = run_steps(program, free=number)
        if str(number) not in on_path:
            assert faster.end_ps == log.end_ps
        else:
            assert log.end_ps - step.time_ps <= faster.end_ps <= log.end_ps


@pytest.mark.adr("0153-D3")
def test_a_path_goes_through_the_rank_that_comes_last_to_a_collective() -> None:
    def work(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        x = torch.randn(512, 512)
        for _ in range(6 if rank == 1 else 1):
            x = x @ x
        torch.distributed.all_reduce(x)
        ops.gelu(x)

    with RuntimeContext(machine="ahbm:2", ranks=2) as torch:
        torch.multiprocessing.spawn(work, (torch,), nprocs=2)
    path = assert_whole(torch.op_log)
    reduced = next(n for n, segment in enumerate(path) if segment.kind == "collective")
    assert {segment.rank for segment in path[:reduced] if segment.kind == "kernel"} == {1}
    products = [segment for segment in path[:reduced] if segment.kind == "kernel"]
    assert [segment.name for segment in products] == ["matmul"] * 6
    assert [segment.name for segment in path[reduced:]][:2] == ["all_reduce", "gelu"]


@pytest.mark.adr("0153-D3")
def test_launches_bound_a_program_of_small_kernels_and_kernels_one_of_large_ones() -> None:
    for size, kind in ((16, "launch"), (2048, "kernel")):
        with RuntimeContext(machine="ahbm:1", data=False) as torch:
            x = torch.zeros(size, size)
            for _ in range(20):
                x = ops.gelu(x)
            torch.ahbm.synchronize()
        path = assert_whole(torch.op_log)
        times_ps: dict[str, int] = {}
        for segment in path:
            times_ps[segment.kind] = times_ps.get(segment.kind, 0) + segment.duration_ps
        assert times_ps[kind] > 0.8 * torch.op_log.end_ps
        if kind == "launch":
            # One launch after the other, and the last kernel.
            assert len([segment for segment in path if segment.kind == "launch"]) == 21


@pytest.mark.adr("0153-D3")
def test_the_log_says_what_each_command_waited_for() -> None:
    with RuntimeContext(machine="ahbm:1", data=False) as torch:
        x = torch.zeros(2048, 2048)
        y = ops.gelu(x)
        ops.gelu(y)
        torch.ahbm.synchronize()
        ops.gelu(x)
    table = torch.op_log.to_arrow().to_pylist()
    after = {row["launch"]: row["after"] for row in table}
    first = min(after)
    assert list(after.values())[1:] == [first, first + 1, 0]


def test_a_run_of_nothing_has_an_empty_path() -> None:
    assert critical_path(OpLog()) == []


@pytest.mark.adr("0153-D3")
def test_a_second_spawn_begins_when_the_slowest_rank_of_the_first_has_ended() -> None:
    def slow_on_1(rank: int, torch: Any) -> None:
        x = torch.zeros(2048, 2048)
        for _ in range(8 * rank):
            x = ops.gelu(x)
        torch.ahbm.synchronize()

    with RuntimeContext(machine="ahbm:2", ranks=2, data=False) as torch:
        for _ in range(2):
            torch.multiprocessing.spawn(slow_on_1, (torch,), nprocs=2)
    path = assert_whole(torch.op_log)
    kernels = [segment for segment in path if segment.kind == "kernel"]
    assert {segment.rank for segment in kernels} == {1}
    assert sum(segment.name == "gelu" for segment in kernels) == 16
    assert not [segment for segment in path if segment.kind == "host"]
