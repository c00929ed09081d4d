"""Events that move, against a list that is sorted anew for every event."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy.core import EmptySchedule, Infinity

from kernbench.clock import event_queue as module
from kernbench.clock.event_queue import EventQueue
from kernbench.clock.handles import Handle, Timer


class SortedEvents:
    """Times of events by name, in the order in which they were first scheduled."""

    def __init__(self) -> None:
        self.ends_ps: dict[int, int] = {}

    def reschedule(self, name: int, end_ps: int | None) -> None:
        if end_ps is None:
            self.ends_ps.pop(name, None)
        elif name in self.ends_ps:
            self.ends_ps[name] = end_ps

    def step(self) -> tuple[int, int]:
        end_ps, name = min((end_ps, name) for name, end_ps in self.ends_ps.items())
        del self.ends_ps[name]
        return end_ps, name


@given(seed=st.integers(0, 1 << 32))
def test_events_that_move_happen_in_the_order_of_a_list_that_is_sorted(seed: int) -> None:
    chance = random.Random(seed)
    queue, expected = EventQueue(), SortedEvents()
    timers: list[Timer] = []
    happened: list[tuple[int, int]] = []

    def note(name: int, _: object) -> None:
        happened.append((int(queue.now), name))

    for _ in range(chance.randrange(300)):
        now_ps = int(queue.now)
        kind = chance.random()
        if kind < 0.5 or not timers:
            delay_ps, name = chance.randrange(6), len(timers)
            timers.append(Timer(queue, delay_ps))
            timers[-1].when_done(partial(note, name))
            expected.ends_ps[name] = now_ps + delay_ps
        elif kind < 0.85:
            # One that has happened, or is cancelled already, stays as it is.
            chosen = chance.sample(range(len(timers)), min(len(timers), chance.randint(1, 3)))
            moves = {
                name: None if chance.random() < 0.4 else now_ps + chance.randrange(6)
                for name in chosen
            }
            queue.reschedule({timers[name]: end_ps for name, end_ps in moves.items()})
            for name, end_ps in moves.items():
                expected.reschedule(name, end_ps)
        elif expected.ends_ps:
            assert queue.peek() == min(expected.ends_ps.values())
            queue.step()
            assert happened[-1] == expected.step()
        assert len(queue) == len(expected.ends_ps)
    while expected.ends_ps:
        queue.step()
        assert happened[-1] == expected.step()
    assert queue.peek() == Infinity
    now_ps = int(queue.now)
    with pytest.raises(EmptySchedule):
        queue.step()
    assert queue.now == now_ps, "what was cancelled moves no clock"


def test_many_cancelled_events_leave_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", 4)
    queue = EventQueue()
    Timer(queue, 5)
    for _ in range(100):
        queue.reschedule({Timer(queue, 10**15): None})
        assert len(queue._queue) <= 6
    queue.run()
    assert queue.now == 5


def test_callbacks_before_waiters_come_first_and_the_last_of_them_before_others() -> None:
    queue = EventQueue()
    handle, seen = Handle(queue), list[str]()
    handle.when_done(lambda _: seen.append("waiter"))
    handle.before_waiters(lambda _: seen.append("first"))
    handle.before_waiters(lambda _: seen.append("second"))
    handle.end_after(3)
    queue.run()
    assert seen == ["second", "first", "waiter"]


def test_the_time_is_that_of_simpy_and_an_integer() -> None:
    queue = EventQueue()
    assert (queue.now_ps, queue.now) == (0, 0)
    Timer(queue, 7)
    queue.run()
    assert (queue.now_ps, queue.now) == (7, 7)
    assert isinstance(queue.now_ps, int)
