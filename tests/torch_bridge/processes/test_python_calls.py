"""Calls between the operations of a program are counted until they are known."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from kernbench.torch_bridge.processes.python_calls import (
    HAS_MONITORING,
    MONITOR,
    ProgramPlace,
    PythonCalls,
    ThreadCalls,
)

pytestmark = pytest.mark.adr("0130-D6")


@pytest.fixture(scope="module", autouse=True)
def _monitored() -> Iterator[None]:
    """Do what a run does for as long as it lasts.

    A collection would call what libraries of the tests have do then, and its calls would count.
    """
    gc.disable()
    if HAS_MONITORING:
        MONITOR.begin()
    yield
    if HAS_MONITORING:
        MONITOR.end()
    gc.enable()


class Program:
    """Goes from operation to operation, with a number of calls in between."""

    def __init__(self) -> None:
        self.calls = PythonCalls()
        self.thread = ThreadCalls(self.calls)
        self.num_counted = 0

    def goes(self, *steps: tuple[str, int]) -> list[int]:
        """Return what was taken at each operation, by the calls made on the way to it."""
        return [self._go(name, num_calls) for name, num_calls in steps]

    def _go(self, name: str, num_calls: int) -> int:
        self.thread.resume()
        self.num_counted += self.thread.is_on
        _call(num_calls)
        # Calling is one itself, and pausing is two.
        self.thread.pause(3)
        self.calls.comes_to(name, _call.__code__, 0)
        return self.calls.take()


def _call(count: int) -> None:
    for _ in range(count):
        _called()


def _called() -> None:
    pass


def test_calls_that_are_equal_each_time_are_counted_ever_more_rarely() -> None:
    program = Program()
    steps = [("a", 3), ("b", 5)] * 300
    assert program.goes(*steps) == [num_calls for _, num_calls in steps]
    assert program.num_counted < 60


def test_a_place_that_leads_to_two_has_the_calls_of_each() -> None:
    program = Program()
    layer = [("norm", 4), ("mm", 7)]
    steps = [*layer * 12, ("loss", 20)] * 12
    goes = program.goes(*steps)
    # Once per leg that nobody had counted, it takes the calls of another.
    wrong = [
        at
        for at, (number, (_, right)) in enumerate(zip(goes, steps, strict=True))
        if number != right
    ]
    assert len(wrong) <= 1
    assert program.num_counted < len(steps) // 2


def test_counts_that_change_are_noticed_and_counted_from_then_on() -> None:
    program = Program()
    program.goes(*[("a", 3)] * 50)
    late = program.goes(*[("a", 9)] * 100)
    assert late[-1] == 9
    varying = [("a", number % 7) for number in range(200)]
    assert Program().goes(*varying)[100:] == [number for _, number in varying[100:]]


def test_two_programs_count_the_same_whatever_their_code_is_called() -> None:
    steps = [("a", 2), ("b", 3), ("a", 2), ("c", 9)] * 40
    first, second = Program(), Program()
    assert first.goes(*steps) == second.goes(*steps)
    assert first.num_counted == second.num_counted


def test_a_place_that_leads_to_many_is_always_counted() -> None:
    place = ProgramPlace("op", _call.__code__, 0)
    for number in range(20):
        place.counted(ProgramPlace(str(number), _call.__code__, 0), 1)
    assert place.is_open
    assert not place.left
