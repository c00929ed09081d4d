"""A burst of operations has the times of one event of the simulation per operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.clock import Flow, Share, Stream, StreamCommand
from kernbench.hardware import load_machine
from kernbench.op_log import Limit, Template
from kernbench.runtime_api import Marker, Run, WaitFor
from kernbench.torch_bridge.processes.bursts import Burst
from kernbench.torch_bridge.processes.host import Host
from tests.logs import kernel
from tests.tiers import examples
from tests.torch_bridge.running import simulated

STREAMS = 3
MACHINE = load_machine("ahbm", 1)


class Fixed:
    """A timing that is the same in every state but for the queue, which saves 1 ps."""

    def __init__(self, name: str, duration_ps: int) -> None:
        # It asks for three quarters of HBM.
        self.idle = kernel(name, duration_ps, limits_ps={Limit.HBM: duration_ps * 3 // 4})
        self.queued = replace(self.idle, duration_ps=duration_ps - 1)

    def template(self, queued: bool) -> Template:
        return self.queued if queued else self.idle


class OneOperation(StreamCommand):
    """The reference: one command, and one event, per operation."""

    def __init__(self, run: Run, queue: Stream, timing: Any) -> None:
        super().__init__(run.simulation.env, "operation")
        self.engine = run.devices.sip(0).pes
        self._run, self._queue, self._timing = run, queue, timing

    def begin(self) -> int:
        self.template = self._timing.template(self.queued)
        return self.template.duration_ps

    def finish(self) -> None:
        self._run.recorder.command(
            self.template, (0,), (0,), (self.start_ps,), (self.end_ps,), self._queue.name, 0
        )


def one_by_one(host: Host, run: Run, queue: Stream, timing: Any) -> None:
    command = OneOperation(run, queue, timing)
    command.earliest_ps = host.spend("operation")
    queue.submit(command)


def in_bursts(host: Host, run: Run, queue: Stream, timing: Any) -> None:
    earliest_ps = host.spend("operation")
    if not (type(queue.tail) is Burst and queue.tail.join(earliest_ps, timing)):
        burst = Burst(run, queue, 0)
        burst.join(earliest_ps, timing)
        queue.submit(burst)


def transfer(run: Run, demand: int, duration_ps: int) -> None:
    """Let something that asks for part of HBM begin now, as a collective would."""
    now_ps = run.simulation.now_ps
    handle = run.simulation.timer(duration_ps)
    run.devices.hbm.begin(
        Flow([Share(0, demand, handle, duration_ps, now_ps + duration_ps)], now_ps)
    )


def times(program: list[tuple[Any, ...]], launch: Any) -> dict[str, tuple[str, int, int]]:
    run = Run(MACHINE, 1, False, 0)
    host = Host(run, 0)
    queues = [run.devices.sip(0).queue, *(run.new_stream(0).queue for _ in range(STREAMS - 1))]
    for number, (kind, *rest) in enumerate(program):
        if kind == "operation":
            stream, duration_ps = rest
            launch(host, run, queues[stream], Fixed(f"op{number}", duration_ps))
        elif kind == "wait":
            marker = Marker(run)
            host.enqueue(marker, queues[rest[0]])
            host.enqueue(WaitFor(run, marker), queues[rest[1]])
        elif kind == "sleep":
            host.sleep(rest[0])
        elif kind == "transfer":
            transfer(run, *rest)
        elif queues[rest[0]].tail is not None:
            host.wait(queues[rest[0]].tail)
    run.drain()
    return {
        instance.template.name: (instance.stream, instance.starts_ps[0], instance.ends_ps[0])
        for instance in run.op_log.instances
    }


stream = st.integers(0, STREAMS - 1)
# Odd durations of many sizes: two things that are due at one time may go in either order.
duration = st.integers(1, 4_000_000).map(lambda value: 2 * value + 1)
step = st.one_of(
    st.tuples(st.just("operation"), stream, duration),
    st.tuples(st.just("operation"), stream, duration),
    st.tuples(st.just("wait"), stream, stream),
    st.tuples(st.just("sleep"), duration),
    st.tuples(st.just("transfer"), st.integers(1, 64), duration),
    st.tuples(st.just("synchronize"), stream),
)


@pytest.mark.adr("0063-D2")
@examples(60)
@given(st.lists(step, max_size=20))
def test_bursts_and_single_operations_have_the_same_times(program: list[tuple[Any, ...]]) -> None:
    assert times(program, in_bursts) == times(program, one_by_one)


@pytest.mark.adr("0063-D2")
def test_a_long_burst_on_an_idle_device_takes_few_events() -> None:
    run = Run(MACHINE, 1, False, 0)
    host = Host(run, 0)
    queue = run.devices.sip(0).queue
    num_before = next(run.simulation.env._eid)
    for number in range(1000):
        in_bursts(host, run, queue, Fixed(f"op{number}", 1001))
    run.drain()
    assert len(run.op_log) == 1000
    assert next(run.simulation.env._eid) - num_before < 10


@pytest.mark.adr("0063-D2")
def test_a_stream_that_waits_for_what_follows_a_burst_costs_no_events() -> None:
    run = Run(MACHINE, 1, False, 0)
    host = Host(run, 0)
    first, second = run.devices.sip(0).queue, run.new_stream(0).queue
    num_before = next(run.simulation.env._eid)
    for number in range(1000):
        in_bursts(host, run, first, Fixed(f"op{number}", 1001))
    marker = Marker(run)
    host.enqueue(marker, first)
    host.enqueue(WaitFor(run, marker), second)
    in_bursts(host, run, second, Fixed("copy", 1001))
    run.drain()
    assert next(run.simulation.env._eid) - num_before < 30
    assert run.op_log.instances[-1].template.name == "copy"


@pytest.mark.adr("0063-D2")
def test_an_operation_of_another_stream_comes_in_after_the_one_that_runs() -> None:
    run = Run(MACHINE, 1, False, 0)
    host = Host(run, 0)
    first, second = run.devices.sip(0).queue, run.new_stream(0).queue
    for number in range(10):
        in_bursts(host, run, first, Fixed(f"op{number}", 100_000_001))
    run.simulation.run_until(run.simulation.timer(250_000_000))
    in_bursts(host, run, second, Fixed("urgent", 1001))
    run.drain()
    order = sorted(run.op_log.instances, key=lambda item: item.starts_ps)
    assert [entry.template.name for entry in order][:5] == ["op0", "op1", "op2", "urgent", "op3"]


def test_what_others_wait_for_takes_no_more_operations() -> None:
    run = Run(MACHINE, 1, False, 0)
    host = Host(run, 0)
    queue = run.devices.sip(0).queue
    in_bursts(host, run, queue, Fixed("before", 1001))
    tail = queue.tail
    assert tail is not None
    tail.when_done(lambda _: None)
    in_bursts(host, run, queue, Fixed("after", 1001))
    assert queue.tail is not tail
    run.drain()
    assert tail.end_ps == run.op_log.instances[0].ends_ps[0]


def test_an_operation_before_a_pause_takes_its_own_time() -> None:
    """A collective that takes the device in the pause does not make it longer."""
    log = simulated("cut_bursts.py", nprocs=2, machine="h100-sxm:2", data=False).op_log
    relus = [instance for instance in log.instances if instance.template.name == "aten.relu"]
    assert len(relus) == 2
    for item in relus:
        assert item.ends_ps[0] - item.starts_ps[0] == item.template.duration_ps
    # It waited for its other rank, and for no operation.
    (collective,) = [
        instance for instance in log.instances if instance.template.name == "all_reduce"
    ]
    assert log.number_of(collective.after[1]) == 0
