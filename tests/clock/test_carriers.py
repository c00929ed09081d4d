"""Ranks on threads behave as ranks on greenlets do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.clock import (
    Carrier,
    Rank,
    Simulation,
    carriers,
    on_greenlet,
    on_thread,
    taking_turns,
)
from kernbench.errors import DeadlockError
from kernbench.interrupts import is_untimely
from tests.tiers import examples


def thread() -> Carrier:
    return on_thread("worker", lambda: None)


def ignore(rank: Rank) -> None:
    """Take no note of a rank's end."""


def trace(delays: list[list[int]], carrier: Callable[[], Carrier]) -> list[tuple[int, int, int]]:
    simulation = Simulation()
    seen: list[tuple[int, int, int]] = []

    def body(rank: int) -> None:
        for step, delay in enumerate(delays[rank]):
            simulation.sleep(delay)
            seen.append((rank, step, simulation.now_ps))

    for rank in range(len(delays)):
        simulation.start_rank(rank, partial(body, rank), ignore, carrier=carrier())
    simulation.drain()
    return seen


@pytest.mark.adr("0060-D1")
@examples(25)
@given(st.lists(st.lists(st.integers(0, 50), max_size=5), min_size=1, max_size=5))
def test_threads_take_turns_in_the_order_of_greenlets(delays: list[list[int]]) -> None:
    assert trace(delays, thread) == trace(delays, lambda: on_greenlet)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_threads_that_take_turns_do_not_interrupt_who_wakes_them() -> None:
    simulation = Simulation()
    policies: list[int] = []
    before = os.sched_getscheduler(0)

    def body() -> None:
        policies.append(os.sched_getscheduler(0))

    with taking_turns():
        simulation.start_rank(0, body, ignore, carrier=thread())
        simulation.drain()
    assert policies == [os.SCHED_BATCH if before == os.SCHED_OTHER else before]
    assert os.sched_getscheduler(0) == before


@pytest.mark.adr("0060-D1")
def test_each_rank_has_an_operating_system_thread_and_none_is_left() -> None:
    simulation = Simulation()
    idents: set[int] = set()
    before = threading.active_count()

    def body() -> None:
        simulation.sleep(1)
        idents.add(threading.get_ident())

    for rank in range(3):
        simulation.start_rank(rank, body, ignore, carrier=thread())
    simulation.drain()
    assert len(idents - {threading.get_ident()}) == 3
    assert threading.active_count() == before


def test_what_comes_before_a_switch_runs_on_main_each_time() -> None:
    simulation = Simulation()
    calls: list[int] = []
    carrier = on_thread("worker", lambda: calls.append(threading.get_ident()))

    def body() -> None:
        simulation.sleep(1)
        simulation.sleep(1)

    simulation.start_rank(0, body, ignore, carrier=carrier)
    simulation.drain()
    assert calls == [threading.get_ident()] * 3


@pytest.mark.adr("0060-D1")
def test_a_deadlock_of_threads_names_the_lines_at_which_they_wait() -> None:
    simulation = Simulation()

    def body() -> None:
        simulation.wait(simulation.handle("a letter"))

    rank = simulation.start_rank(0, body, ignore, carrier=thread())
    line = body.__code__.co_firstlineno + 1
    with pytest.raises(DeadlockError, match=rf"rank 0  a letter, .*test_carriers.py:{line}"):
        simulation.drain()
    rank.kill()


def interrupted(
    simulation: Simulation, after_s: float, begun: threading.Event | None = None
) -> bool:
    """Drive a simulation, with Ctrl-C after a while; return whether main itself was interrupted.

    The while begins with ``begun``, for on a busy machine a rank may take long to come to its code.
    """

    def interrupt() -> None:
        if begun is not None:
            begun.wait()
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGINT)

    # Where the tests run in the background, Python was told to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        simulation.drain()
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGINT, before)
    return False


@pytest.mark.adr("0060-D1")
def test_an_interrupt_of_main_ends_the_thread_that_runs() -> None:
    simulation, begun = Simulation(), threading.Event()

    def body() -> None:
        begun.set()
        while True:
            time.sleep(0.001)

    rank = simulation.start_rank(0, body, ignore, carrier=thread())
    assert not interrupted(simulation, 0.1, begun)
    assert isinstance(rank.error, KeyboardInterrupt)


@pytest.mark.adr("0077-D5")
@pytest.mark.parametrize("trial", range(6))
def test_an_interrupt_between_turns_is_not_lost_and_leaves_no_thread(trial: int) -> None:
    simulation = Simulation()

    def body() -> None:
        while True:
            simulation.sleep(1)

    def others_end(ended: Rank) -> None:
        for rank in ranks:
            rank.abort()

    ranks = [simulation.start_rank(index, body, others_end, carrier=thread()) for index in range(3)]
    on_main = interrupted(simulation, 0.02 + 0.003 * trial)
    for rank in ranks:
        if rank.alive:
            rank.kill()
    assert on_main or any(isinstance(rank.error, KeyboardInterrupt) for rank in ranks)
    assert not any(item.name == "worker" for item in threading.enumerate())


@pytest.mark.adr("0077-D5")
def test_an_interrupt_during_a_call_of_c_is_raised_at_the_wait_behind_it() -> None:
    simulation, begun = Simulation(), threading.Event()
    steps: list[str] = []

    def body() -> None:
        begun.set()
        time.sleep(1)  # begun before, and ends after
        try:
            simulation.sleep(1)
            simulation.sleep(1)
        except KeyboardInterrupt:
            steps.append("interrupted")
            simulation.sleep(1)
            steps.append("saved")

    rank = simulation.start_rank(0, body, ignore, carrier=thread())
    assert not interrupted(simulation, 0.1, begun)
    assert steps in (["interrupted", "saved"], [])
    assert rank.error is None or isinstance(rank.error, KeyboardInterrupt)
    assert steps or rank.error is not None


@pytest.mark.adr("0077-D5")
def test_an_interrupt_before_a_thread_gets_to_its_code_reaches_main() -> None:
    simulation = Simulation()

    def interrupt() -> None:
        raise KeyboardInterrupt

    def interrupted_at_once(_: Callable[[], None]) -> Any:
        return thread()(interrupt)

    rank = simulation.start_rank(0, lambda: None, ignore, carrier=interrupted_at_once)
    with pytest.raises(KeyboardInterrupt):
        simulation.drain()
    rank.kill()
    assert not any(item.name == "worker" for item in threading.enumerate())


@pytest.mark.adr("0077-D5")
@pytest.mark.parametrize("trial", range(3))
def test_an_interrupt_that_a_finalizer_swallows_is_raised_again(
    trial: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation, begun, before = Simulation(), threading.Event(), sys.unraisablehook
    is_sent = []

    class Dropped:
        def __del__(self) -> None:
            for _ in range(200):
                pass

    def body() -> None:
        begun.set()
        # Far longer than it takes to come by the moments between finalizers, on busy cores too.
        end = time.monotonic() + 60
        while time.monotonic() < end:
            Dropped()
        steps.append("went on")

    def untimely(frame: Any) -> bool:
        # As where a finalizer begins between the question and the interrupt.
        is_sent.append(frame)
        return False if len(is_sent) == 1 else is_untimely(frame)

    steps: list[str] = []
    monkeypatch.setattr(carriers, "is_untimely", untimely)
    simulation.start_rank(0, body, ignore, carrier=thread())
    assert not interrupted(simulation, 0.05 + 0.01 * trial, begun)
    assert not steps
    assert sys.unraisablehook is before
    assert "ignored" not in capsys.readouterr().err


def test_an_error_that_an_interrupt_has_caused_is_that_interrupt() -> None:
    simulation = Simulation()

    def body() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the library is in disorder")

    rank = simulation.start_rank(0, body, ignore, carrier=thread())
    simulation.drain()
    assert isinstance(rank.error, KeyboardInterrupt)
