"""Streams: in order, one at a time, and errors end up where somebody looks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.clock import Simulation, Stream, StreamCommand
from kernbench.errors import InternalError


class Fixed(StreamCommand):
    """Takes a known time and writes down when it ended."""

    def __init__(self, simulation: Simulation, duration_ps: int, ended: list[int]) -> None:
        super().__init__(simulation.env)
        self.duration_ps = duration_ps
        self.ended = ended

    def begin(self) -> int:
        return self.duration_ps

    def finish(self) -> None:
        self.ended.append(self.end_ps)


class Broken(StreamCommand):
    def begin(self) -> int:
        raise ZeroDivisionError("cannot be scheduled")


class Ending(StreamCommand):
    """Raises an error when it starts, or when it ends."""

    def __init__(self, simulation: Simulation, error: Exception, at_start: bool) -> None:
        super().__init__(simulation.env, "a command")
        self.raised, self.at_start = error, at_start

    def begin(self) -> int:
        if self.at_start:
            raise self.raised
        return 1

    def finish(self) -> None:
        raise self.raised


@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, ValueError])
def test_an_error_of_a_command_ends_no_iteration_in_silence(
    error: type[Exception], at_start: bool
) -> None:
    simulation = Simulation()
    command = Ending(simulation, error("x"), at_start)
    Stream(simulation, "sip0").submit(command)
    expected = error if error is ValueError else InternalError
    with pytest.raises(expected) as raised:
        # What waits may be inside of an iterator.
        list(map(simulation.wait, [command]))
    assert error is ValueError or str(raised.value) == f"a command raised {error.__name__}"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20),
)
def test_commands_run_back_to_back_in_order(commands: list[tuple[int, int]]) -> None:
    simulation = Simulation()
    stream, ended = Stream(simulation, "sip0"), []  # type: ignore[var-annotated]
    issued = []
    for gap, duration in commands:
        if gap:
            simulation.sleep(gap)
        command = Fixed(simulation, duration, ended)
        stream.submit(command)
        issued.append((simulation.now_ps, command))
    simulation.drain()
    free = 0
    for (submitted, command), (_, duration) in zip(issued, commands, strict=True):
        assert command.start_ps == max(free, submitted)
        free = command.end_ps = command.start_ps + duration
    assert ended == [command.end_ps for _, command in issued]


def test_who_waits_goes_on_after_the_command_has_finished() -> None:
    simulation = Simulation()
    ended: list[int] = []
    command = Fixed(simulation, 10, ended)
    stream = Stream(simulation, "sip0")
    stream.submit(command)
    assert stream.tail is command
    simulation.wait(command)
    assert ended == [10]


def test_a_command_that_fails_raises_in_who_waits_and_the_next_one_runs() -> None:
    simulation = Simulation()
    stream, ended = Stream(simulation, "sip0"), []  # type: ignore[var-annotated]
    broken = Broken(simulation.env)
    stream.submit(broken)
    stream.submit(Fixed(simulation, 10, ended))
    with pytest.raises(ZeroDivisionError, match="cannot be scheduled"):
        simulation.wait(broken)
    simulation.drain()
    assert ended == [10]
    stream.raise_unseen()


def test_an_error_that_nobody_waited_for_is_raised_when_asked_and_once() -> None:
    simulation = Simulation()
    stream = Stream(simulation, "sip0")
    stream.submit(Broken(simulation.env))
    simulation.drain()
    with pytest.raises(ZeroDivisionError):
        stream.raise_unseen()
    stream.raise_unseen()
