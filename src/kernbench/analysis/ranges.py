"""The part of a run that is asked for: a step, a named range, or what is steady (ADR-0260)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernbench.errors import UnknownNameError, UsageError
from kernbench.op_log import (
    OpLog,
    RunSteps,
    Window,
    all_steps,
    find_steps,
    joined,
    line_visits,
    named_windows,
    range_names,
)
from kernbench.report import format_ns

ALL, STARTUP, REST = "all", "start-up", "rest"
"""Ranges that every run with steps has: all of it, what is before its first step, and what is in
neither."""
_PLACE = re.compile(r"(.+):(\d+)")
_SLICE = re.compile(r"(-?\d+)|(-?\d+)?:(-?\d+)?")
_MOST_NAMED, _MOST_LINES = 12, 4


@dataclass(frozen=True, slots=True, eq=False)
class RunPart:
    """A part of a run, and what it is called."""

    window: Window | None = None
    """None: all of the run."""
    name: str = ALL
    said: str = ""
    """What is said of it in the head of tables; empty for all of the run."""
    startup: Window | None = None
    """What is before the first step, of a step that was chosen as nothing else was asked for."""
    find: Callable[[OpLog], Window] | None = None
    """Finds the same part in another run of the program."""

    def time_ps(self, log: OpLog) -> float:
        """Return how long this part of a run takes, the mean of its ranks.

        Raises:
            UsageError: The run has no such part.
        """
        return log.end_ps if self.find is None else self.find(log).mean_ps


WHOLE_RUN = RunPart()


def part_of(
    log: OpLog, name: str | None = None, steps: str | None = None, *, is_steady: bool = True
) -> RunPart:
    """Return the part of a run that is asked for.

    Args:
        log: What the run did.
        name: A name of ranges or of a step, ``FILE:LINE`` for steps that begin at a line of the
            program, or one of :data:`ALL`, :data:`STARTUP` and :data:`REST`.
        steps: Which of the steps, or of the ranges of that name, as Python slices a list: ``3``,
            ``2:``, ``2:5``, ``-1``.
        is_steady: Whether without both the steady step is meant, if the run has steps.

    Raises:
        UsageError: There are no steps, or not those.
        UnknownNameError: There is no such range; names those that there are.
    """
    if name == ALL and steps is None:
        return RunPart()
    named = [] if name is None else named_windows(log, name)
    if name is not None and named:
        chosen = slice(None) if steps is None else _slice(log, named, steps, f"ranges {name}")
        count = len(named[chosen])
        more = "" if count == 1 else f", {count} ranges of the name"
        called = name if steps is None else f"{name}[{steps}]"

        def find(other: OpLog) -> Window:
            like = None if other is log else log
            return joined(named_windows(other, name, like)[chosen])

        return _part(log, called, more, find)
    place = None if name is None else _PLACE.fullmatch(name)
    site = (place[1], int(place[2])) if place else None
    part = find_steps(log, site)
    if part is None:
        if name is None and steps is None:
            return RunPart()
        raise _unknown(log, name)
    if steps is not None:
        if not (name is None or site or name == ALL):
            raise _unknown(log, name, part)
        return _of_steps(log, part, _slice(log, part.steps, steps, "steps"), "")
    if name is None and not is_steady:
        return RunPart()
    if name is None or site:
        steady = slice(part.steady, part.steady + 1)
        return replace(_of_steps(log, part, steady, "the steady one "), startup=part.startup)
    return _called(log, name, part)


def _called(log: OpLog, name: str, steps: RunSteps) -> RunPart:
    """Return the part of a run with steps that has a name."""
    if name == STARTUP:
        said = f" before the first of {_about(steps)}"
        return _part(log, STARTUP, said, lambda log: _again(steps, log).startup)
    if name == REST:

        def rest(log: OpLog) -> Window:
            known = _again(steps, log)
            return joined([known.startup, all_steps(known.steps)]).outside(log.end_ps)

        return _part(log, REST, f", beside {_about(steps)} and what is before them", rest)
    for place, step in enumerate(steps.steps):
        if step.name == name:
            return _of_steps(log, steps, slice(place, place + 1), "")
    raise _unknown(log, name, steps)


def _of_steps(log: OpLog, result: RunSteps, chosen: slice, which: str) -> RunPart:
    steps = result.steps[chosen]
    name = steps[0].name if len(steps) == 1 else f"{steps[0].name} to {steps[-1].name}"

    def find(log: OpLog) -> Window:
        return all_steps(_again(result, log).steps[chosen])

    return _part(log, name, f", {which}of {_about(result)}", find)


def _again(result: RunSteps, log: OpLog) -> RunSteps:
    if log is result.log:
        return result
    steps = result.again(log)
    if steps is None or len(steps.steps) != len(result.steps):
        raise UsageError(
            log.about(
                f"a run that is done again has not the steps that were found by {result.found_by}; "
                "name them with record_function, or ask for --range all"
            )
        )
    return steps


def _part(log: OpLog, name: str, more: str, find: Callable[[OpLog], Window]) -> RunPart:
    window = find(log)
    return RunPart(window, name, f"{name}: {format_ns(window.mean_ps / 1000)}{more}", find=find)


def _about(steps: RunSteps) -> str:
    return f"{len(steps.steps)} steps, found by {steps.found_by}"


def _slice(log: OpLog, value: Sequence[object], text: str, what: str) -> slice:
    match = _SLICE.fullmatch(text.strip())
    if match is None or not text.strip():
        said = f"--steps takes a number or a slice such as 3, 2: or 2:5, but got {text!r}"
        raise UsageError(said)
    one, first, last = (None if group is None else int(group) for group in match.groups())
    if one is not None:
        first, last = one, (one + 1) or None
    if not value[first:last]:
        raise UsageError(
            log.about(f"--steps {text} are none of its {len(value)} {what}, 0 to {len(value) - 1}")
        )
    return slice(first, last)


def _no_steps_at(log: OpLog, file: str, line: int) -> str:
    """Say that no steps begin at a line, and at which lines near it some do."""
    visits = line_visits(log, file)
    often = [known for known, count in visits.items() if count > 1]
    near = sorted(sorted(often, key=lambda known: abs(known - line))[:_MOST_LINES])
    why = "caused something once, and steps need two" if line in visits else "caused nothing"
    listed = ", ".join(f"{known} ({visits[known]} times)" for known in near)
    others = f"the nearest lines that did more than once: {listed}" if near else "no line did twice"
    return f"no steps of this run begin at {file}:{line}, which {why}; {others}"


def _unknown(log: OpLog, name: str | None, steps: RunSteps | None = None) -> Exception:
    own = [*(step.name for step in steps.steps)] if steps else []
    names = list(dict.fromkeys([*own, *range_names(log)]))
    listed = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    if name is None:
        return UsageError(
            log.about(
                "no steps were found in this run: it names no ranges of steps (record_function, "
                "NVTX, profiler.step) and calls no optimizer; name a line at which each begins, "
                f"--range FILE:LINE, or a range{f': {listed}' if names else ''}"
            )
        )
    said = f"its ranges are {listed}" if names else "its program names no ranges"
    if place := _PLACE.fullmatch(name):
        raise UnknownNameError(log.about(_no_steps_at(log, place[1], int(place[2]))))
    return UnknownNameError(
        log.about(f"no range or step of this run is called {name!r}; {said}; all, start-up, rest")
    )
