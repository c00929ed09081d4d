"""Ranks: greenlets that are SimPy processes (T3, worker-wait)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.clock import Carrier, Handle, Rank, Simulation, on_greenlet, on_thread
from tests.tiers import examples

carriers = pytest.mark.parametrize(
    "carrier",
    [lambda: on_greenlet, lambda: on_thread("worker", lambda: None)],
    ids=["greenlet", "thread"],
)


def ignore(rank: Rank) -> None:
    """Take no note of a rank's end."""


@pytest.mark.adr("0027-D0")
def test_a_waiting_rank_goes_on_where_it_waited_with_its_own_state() -> None:
    simulation = Simulation()
    seen: list[tuple[int, int, int]] = []

    def body(rank: int) -> None:
        for step in range(3):
            simulation.sleep(10 * (rank + 1))
            seen.append((rank, step, simulation.now_ps))

    for rank in range(2):
        simulation.start_rank(rank, lambda rank=rank: body(rank), ignore)  # type: ignore[misc]
    simulation.drain()
    assert seen == [(0, 0, 10), (1, 0, 20), (0, 1, 20), (0, 2, 30), (1, 1, 40), (1, 2, 60)]


@examples(50)
@given(st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=8))
def test_every_rank_sees_its_own_waits_add_up_and_time_never_falls(delays: list[list[int]]) -> None:
    simulation = Simulation()
    clock: list[int] = []
    ended: dict[int, int] = {}

    def body(rank: int) -> None:
        for delay in delays[rank]:
            simulation.sleep(delay)
            clock.append(simulation.now_ps)

    for rank in range(len(delays)):
        simulation.start_rank(
            rank,
            lambda rank=rank: body(rank),  # type: ignore[misc]
            lambda rank: ended.update({rank.rank_id: simulation.now_ps}),
        )
    simulation.drain()
    assert clock == sorted(clock)
    assert ended == {rank: sum(delay) for rank, delay in enumerate(delays)}


@pytest.mark.adr("0027-D0")
def test_a_handle_that_has_ended_does_not_give_way_to_other_ranks() -> None:
    simulation = Simulation()
    over = simulation.timer(0)
    order: list[str] = []

    def first() -> None:
        simulation.sleep(1)
        for step in range(3):
            order.append(f"first {step}")
            simulation.wait(over)

    def second() -> None:
        simulation.sleep(1)
        order.append("second")

    simulation.start_rank(0, first, ignore)
    simulation.start_rank(1, second, ignore)
    simulation.drain()
    assert order == ["first 0", "first 1", "first 2", "second"]


@pytest.mark.adr("0027-D0")
def test_the_error_of_a_handle_surfaces_in_every_rank_that_waits() -> None:
    simulation = Simulation()
    handle = simulation.handle()
    caught: list[tuple[int, str]] = []

    def body(rank: int) -> None:
        try:
            simulation.wait(handle)
        except ZeroDivisionError as error:
            caught.append((rank, str(error)))

    for rank in range(2):
        simulation.start_rank(rank, lambda rank=rank: body(rank), ignore)  # type: ignore[misc]
    handle.error = ZeroDivisionError("from the device")
    handle.end_after(5)
    simulation.drain()
    assert caught == [(0, "from the device"), (1, "from the device")]
    assert handle.error_seen


@pytest.mark.adr("0027-D0")
def test_no_command_is_orphaned_when_the_rank_that_started_it_goes_away() -> None:
    simulation = Simulation()
    handles: list[Handle] = []
    simulation.start_rank(0, lambda: handles.append(simulation.timer(100)), ignore)
    simulation.start_rank(1, lambda: simulation.sleep(1), ignore)
    simulation.drain()
    assert handles[0].done
    assert simulation.now_ps == 100


@carriers
def test_an_aborted_rank_gets_system_exit_where_it_waits_and_may_wait_while_cleaning_up(
    carrier: Callable[[], Carrier],
) -> None:
    simulation = Simulation()
    steps: list[str] = []

    def body() -> None:
        try:
            simulation.sleep(1000)
        except SystemExit:
            steps.append("exit")
            raise
        finally:
            simulation.sleep(5)
            steps.append("cleaned up")

    rank = simulation.start_rank(0, body, ignore, carrier=carrier())
    simulation.start_rank(1, rank.abort, ignore, carrier=carrier())
    simulation.run_until(simulation.timer(10))
    assert steps == ["exit", "cleaned up"]
    assert isinstance(rank.error, SystemExit)
    assert not rank.alive


def test_a_rank_aborted_before_it_started_never_runs() -> None:
    simulation = Simulation()
    ran: list[int] = []
    rank = simulation.start_rank(0, lambda: ran.append(1), ignore)
    rank.abort()
    simulation.drain()
    assert not ran
    assert not rank.alive


@carriers
def test_a_killed_rank_runs_its_finally_blocks_without_the_clock(
    carrier: Callable[[], Carrier],
) -> None:
    simulation = Simulation()
    steps: list[str] = []

    def body() -> None:
        try:
            simulation.wait(simulation.handle())
        finally:
            steps.append("cleaned up")

    rank = simulation.start_rank(0, body, ignore, carrier=carrier())
    simulation.run_until(simulation.timer(1))
    rank.kill()
    assert steps == ["cleaned up"]
    assert not rank.alive


@pytest.mark.adr("0027-D0")
def test_a_thousand_ranks_live_in_one_process() -> None:
    simulation = Simulation()
    ended: list[int] = []
    for rank in range(1000):
        simulation.start_rank(
            rank, lambda: simulation.sleep(3), lambda rank: ended.append(rank.rank_id)
        )
    simulation.drain()
    assert ended == list(range(1000))
