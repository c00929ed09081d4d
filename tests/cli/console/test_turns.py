"""A rank that keeps the process to itself is named, with its line and with what it does there."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from kernbench.cli.console import progress as module
from kernbench.cli.console.progress import HELD_S, Turns, progress
from kernbench.clock import Carrier, Rank, Simulation, on_greenlet, on_thread

carriers = pytest.mark.parametrize(
    "carrier",
    [lambda: on_greenlet, lambda: on_thread("worker", lambda: None)],
    ids=["greenlet", "thread"],
)


def ignore(rank: Rank) -> None:
    """Take no note of a rank's end."""


class Noted:
    """What a rank can wait for until it is noted."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lock = threading.Lock()
        self.lock.acquire()
        self.event = threading.Event()

    def add(self, line: str) -> None:
        self.lines.append(line)
        if self.lock.locked():
            self.lock.release()
        self.event.set()


def loops(noted: Noted) -> None:
    lines = noted.lines
    while not lines:
        pass


def computes(noted: Noted) -> None:
    noted.lock.acquire()


def calls_a_library(noted: Noted) -> None:
    noted.event.wait()


@carriers
@pytest.mark.adr("0060-D5", "0060-D6")
@pytest.mark.parametrize(
    ("body", "doing"),
    [
        (loops, "in Python of its own"),
        (computes, "in a call there"),
        (calls_a_library, r"in threading\.\S+"),
    ],
)
def test_a_rank_that_does_not_give_way_is_named_on_stderr(
    body: Callable[[Noted], None],
    doing: str,
    carrier: Callable[[], Carrier],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Long enough to come to what it waits in.
    monkeypatch.setattr(module, "HELD_S", 0.3)
    for name in ("_LOOK_S", "_TURN_LOOK_S"):
        monkeypatch.setattr(module, name, 0.01)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    simulation, result = Simulation(), Noted()
    turns = Turns(simulation)

    def note() -> str | None:
        line = turns.note()
        if line is not None:
            result.add(line)
        return line

    def run(rank: int) -> None:
        simulation.sleep(7)
        if rank == 1:
            body(result)

    with progress(lambda: "", note=note):
        for rank in range(2):
            simulation.start_rank(rank, lambda rank=rank: run(rank), ignore, carrier=carrier())  # type: ignore[misc]
        simulation.drain()
    first = body.__code__.co_firstlineno
    told = re.fullmatch(
        r"note: rank 1 has not given way for \d+ s; it is at "
        rf"test_turns\.py:(\d+), {doing}; other ranks run once it waits for one of them",
        stderr.getvalue().splitlines()[0],
    )
    assert told is not None, stderr.getvalue()
    assert first < int(told[1]) <= first + 5
    assert simulation.now_ps == 7


def noted(body: Callable[[Simulation, Turns], Any], num_ranks: int = 2) -> list[Any]:
    """Return what a rank's body returns, where each look is half of the longest turn later."""
    simulation = Simulation()
    result: list[Any] = []
    turns = Turns(simulation)
    for _ in range(num_ranks):
        simulation.start_rank(0, lambda: result.append(body(simulation, turns)), ignore)
    simulation.drain()
    return result


@pytest.fixture
def half_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(1)
    monkeypatch.setattr(module, "perf_counter", lambda: next(times) * HELD_S / 2)


def looks(simulation: Simulation, turns: Turns) -> list[bool]:
    return [turns.note() is not None for _ in range(6)]


@pytest.mark.usefixtures("half_turns")
@pytest.mark.adr("0060-D5")
def test_a_line_is_noted_once_and_only_of_ranks_that_keep_others_waiting() -> None:
    once = [False, False, True, False, False, False]
    assert noted(looks) == [once, [False] * 6]
    assert noted(looks, num_ranks=1) == [[False] * 6]


@pytest.mark.usefixtures("half_turns")
@pytest.mark.adr("0060-D5")
def test_ranks_that_give_way_are_not_noted_however_long_they_run() -> None:
    def gives_way(simulation: Simulation, turns: Turns) -> list[str | None]:
        way = []
        for _ in range(9):
            simulation.sleep(0)
            way.append(turns.note())
        return way

    assert noted(gives_way) == [[None] * 9] * 2


@pytest.mark.usefixtures("half_turns")
@pytest.mark.adr("0060-D5")
def test_a_rank_that_stands_at_a_debuggers_prompt_is_not_noted() -> None:
    def stands(simulation: Simulation, turns: Turns) -> list[bool]:
        values = {"__name__": "bdb", "looks": looks, "given": (simulation, turns)}
        exec("found = looks(*given)", values)
        return values["found"]  # type: ignore[return-value]

    assert noted(stands) == [[False] * 6] * 2
