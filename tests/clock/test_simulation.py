"""The clock: who advances it, and what happens when nothing can."""

from __future__ import annotations

import pytest

from kernbench.clock import Simulation, listed, microseconds
from kernbench.errors import DeadlockError, UsageError


def test_main_waits_by_advancing_the_clock() -> None:
    simulation = Simulation()
    simulation.sleep(1500)
    simulation.wait(simulation.timer(500))
    assert simulation.now_ps == 2000


def test_waiting_for_what_has_ended_takes_no_time() -> None:
    simulation = Simulation()
    handle = simulation.timer(10)
    simulation.wait(handle)
    simulation.sleep(5)
    simulation.wait(handle)
    assert simulation.now_ps == 15


def test_main_waiting_for_what_nobody_ends_is_a_deadlock() -> None:
    simulation = Simulation()
    with pytest.raises(DeadlockError, match=r"nothing can end a message at 0.000 us"):
        simulation.wait(simulation.handle("a message"))


@pytest.mark.adr("0027-D0")
def test_draining_twice_is_draining_once() -> None:
    simulation = Simulation()
    ended: list[int] = []
    simulation.start_rank(0, lambda: simulation.sleep(7), lambda rank: ended.append(rank.rank_id))
    simulation.drain()
    assert (simulation.now_ps, ended) == (7, [0])
    simulation.drain()
    assert (simulation.now_ps, ended) == (7, [0])


@pytest.mark.adr("0027-D0")
def test_only_main_drives_the_clock() -> None:
    simulation, errors = Simulation(), []

    def body() -> None:
        with pytest.raises(UsageError, match="waited for where it was entered") as caught:
            simulation.drain()
        errors.append(caught.value)

    simulation.start_rank(0, body, lambda rank: None)
    simulation.drain()
    assert len(errors) == 1


def test_a_deadlock_lists_every_rank_and_the_one_waited_for_comes_first() -> None:
    simulation = Simulation()

    class Call(type(simulation.handle())):  # type: ignore[misc]
        def waits_for(self) -> tuple[int, ...]:
            return (2,)

        def describe(self) -> str:
            return "all_reduce #7, waits for rank 2"

    def waits() -> None:
        simulation.wait(Call(simulation.env))

    for rank in (0, 1):
        simulation.start_rank(rank, waits, lambda rank: None)
    simulation.start_rank(2, lambda: simulation.sleep(11_900_000), lambda rank: None)
    simulation.start_rank(3, lambda: simulation.sleep(12_500_000), lambda rank: None)
    with pytest.raises(DeadlockError) as caught:
        simulation.drain()
    lines = str(caught.value).splitlines()
    assert lines[0] == "nothing can wake ranks 0 and 1 at 12.500 us"
    assert lines[1] == "  rank 2  finished at 11.900 us"
    assert lines[2].startswith("  rank 0  all_reduce #7, waits for rank 2, since 0.000 us")
    assert lines[2].split()[-1].startswith("test_simulation.py:")
    assert lines[4] == "  rank 3  finished at 12.500 us"
    for item in simulation.ranks:
        item.kill()


def test_numbers_are_listed_as_a_sentence_has_them() -> None:
    assert listed([4]) == "rank 4"
    assert listed([0, 2]) == "ranks 0 and 2"
    assert microseconds(1_234_567) == "1.234 us"
