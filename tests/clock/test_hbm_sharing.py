"""What shares HBM in time, against a loop over exact fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.clock import Flow, Handle, HbmSharing, Share, Simulation, demand_of
from kernbench.hardware import load_machine
from kernbench.op_log import Draw, shared_clock

WHOLE = 64


@dataclass
class Job:
    """A flow with a demand on each of some SIPs, where it takes so long alone."""

    start_ps: int
    parts: list[tuple[int, int, int]]
    """(SIP, demand, work)."""


def run(jobs: list[Job]) -> list[list[int]]:
    """Return when the parts of every job end."""
    simulation = Simulation()
    sharing = HbmSharing(simulation)
    ends: dict[tuple[int, int], int] = {}

    def end(key: tuple[int, int], _: object) -> None:
        ends[key] = simulation.now_ps

    def begin(number: int, job: Job, _: object) -> None:
        now = simulation.now_ps
        shares = []
        for part, (sip, demand, work) in enumerate(job.parts):
            handle = Handle(simulation.env)
            handle.end_after(work)
            handle.callbacks.append(partial(end, (number, part)))
            shares.append(Share(sip, demand, handle, work, now + work))
        sharing.begin(Flow(shares, now))

    for number, job in enumerate(jobs):
        timer = simulation.timer(job.start_ps)
        timer.callbacks.append(partial(begin, number, job))
    simulation.drain()
    return [
        [ends[number, part] for part in range(len(job.parts))] for number, job in enumerate(jobs)
    ]


def expected(jobs: list[Job]) -> list[list[Fraction]]:
    """Step from event to event: a job runs at the pace of its busiest SIP."""
    done = [Fraction(0) for _ in jobs]
    ends: list[list[Fraction | None]] = [[None] * len(job.parts) for job in jobs]
    now = Fraction(0)
    while any(None in item for item in ends):
        under_way = [
            (number, part)
            for number, job in enumerate(jobs)
            for part in range(len(job.parts))
            if job.start_ps <= now and ends[number][part] is None
        ]
        load: dict[int, int] = {}
        for number, part in under_way:
            sip, demand, _ = jobs[number].parts[part]
            load[sip] = load.get(sip, 0) + demand
        pace = {}
        for number in {number for number, _ in under_way}:
            # What asks for nothing is not slowed down itself, but by the others of its job.
            sips = [
                jobs[number].parts[part][0]
                for item, part in under_way
                if item == number and jobs[number].parts[part][1]
            ]
            pace[number] = min([Fraction(1), *(Fraction(WHOLE, load[sip]) for sip in sips)])
        steps = [
            (jobs[number].parts[part][2] - done[number]) / pace[number]
            for number, part in under_way
        ]
        steps += [job.start_ps - now for job in jobs if job.start_ps > now]
        step = min(steps)
        for number, value in pace.items():
            done[number] += step * value
        now += step
        for number, part in under_way:
            if done[number] >= jobs[number].parts[part][2]:
                ends[number][part] = now
    return ends  # type: ignore[return-value]


PARTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, WHOLE), st.integers(1, 10**6)),
    min_size=1,
    max_size=3,
    unique_by=lambda part: part[0],
)
JOBS = st.lists(st.builds(Job, st.integers(0, 10**6), PARTS), min_size=1, max_size=5)


@pytest.mark.adr("0036-D4")
@given(jobs=JOBS)
def test_ends_are_those_of_exact_fractions(jobs: list[Job]) -> None:
    for result, exact in zip(run(jobs), expected(jobs), strict=True):
        for end, at in zip(result, exact, strict=True):
            # Every change of pace rounds by less than a picosecond, in the pace at that time.
            assert abs(end - at) <= 40


@pytest.mark.adr("0036-D4")
@given(jobs=JOBS)
def test_nothing_is_faster_than_alone(jobs: list[Job]) -> None:
    for job, ends in zip(jobs, run(jobs), strict=True):
        for (_, _, work), end in zip(job.parts, ends, strict=True):
            assert end >= job.start_ps + work


@pytest.mark.adr("0036-D4")
@given(
    works=st.lists(st.tuples(st.integers(0, WHOLE), st.integers(1, 10**6)), min_size=1, max_size=6)
)
def test_together_nothing_takes_longer_than_one_after_the_other(
    works: list[tuple[int, int]],
) -> None:
    jobs = [Job(0, [(0, demand, work)]) for demand, work in works]
    last = max(end for ends in run(jobs) for end in ends)
    assert last <= sum(work for _, work in works) + len(works)


@pytest.mark.adr("0036-D4")
def test_a_kernel_and_a_transfer_slow_each_other_down_whichever_comes_first() -> None:
    """Both ask for all of HBM: while both run, each goes at half of its pace."""
    for first, second in ((0, 1), (1, 0)):
        jobs = [Job(0, [(0, WHOLE, 100)]), Job(50, [(0, WHOLE, 100)])]
        ends = run([jobs[first], jobs[second]])
        assert [ends[first], ends[second]] == [[150], [200]]


@pytest.mark.adr("0036-D4")
def test_half_of_hbm_each_is_no_contention() -> None:
    assert run([Job(0, [(0, 32, 100)]), Job(10, [(0, 32, 100)])]) == [[100], [110]]


@pytest.mark.adr("0036-D5")
def test_a_collective_runs_at_the_pace_of_its_slowest_sip() -> None:
    """A kernel on SIP 1 alone: SIP 0, where nothing else runs, is as late."""
    collective = Job(0, [(0, 32, 100), (1, 32, 100)])
    assert run([collective, Job(0, [(1, WHOLE, 1000)])])[0] == [150, 150]


def test_demands_are_the_share_of_the_time_that_hbm_is_busy() -> None:
    assert [demand_of(*number) for number in ((0, 10), (5, 10), (10, 10), (20, 10), (5, 0))] == [
        0,
        32,
        64,
        64,
        0,
    ]


@pytest.mark.adr("0285-D2")
def test_a_kernel_beside_a_collective_is_slower_by_the_clock_and_the_collective_is_not() -> None:
    power = load_machine("h100-sxm", 1).sip.power
    assert power is not None
    simulation = Simulation()
    sharing = HbmSharing(simulation, lambda _: power)
    room_mw = round(1000 * float(power.board_w - power.idle_w))
    ends = []
    for work, draw in ((10**6, Draw(room_mw, 0, 1.0)), (10**5, Draw(0, 50_000))):
        handle = Handle(simulation.env)
        handle.end_after(work)
        handle.callbacks.append(lambda _: ends.append(simulation.now_ps))
        sharing.begin(Flow([Share(0, 8, handle, work, work, draw)], 0))
    simulation.drain()
    clock = shared_clock(power, [Draw(room_mw, 0, 1.0), Draw(0, 50_000)], 1.0)
    assert 0.9 < clock < 1
    # While the collective runs, the kernel does less by the clock.
    assert ends == [10**5, pytest.approx(10**6 + 10**5 * (1 - clock), abs=2)]
