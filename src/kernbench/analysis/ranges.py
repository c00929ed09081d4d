"""The part of a run that is asked for: a step, a named range, or what is steady (ADR-0260)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from kernbench.errors import UnknownNameError, UsageError
from kernbench.op_log import all_steps, find_steps, joined, named_windows, range_names
from kernbench.report import format_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernbench.op_log import OpLog, RunSteps, Window

ALL, STARTUP, REST = "all", "start-up", "rest"
"""Ranges that every run with steps has: all of it, what is before its first step, and what is in
neither."""
_PLACE = re.compile(r"(.+):(\d+)")
_SLICE = re.compile(r"(-?\d+)|(-?\d+)?:(-?\d+)?")
_MOST_NAMED = 12
T = TypeVar("T")


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
    if named:
        assert name is not None
        windows = named if steps is None else _sliced(log, named, steps, f"ranges {name}")
        times = "" if len(windows) == 1 else f", {len(windows)} ranges of the name"
        return _part(joined(windows), name if steps is None else f"{name} {steps}", times)
    place = None if name is None else _PLACE.fullmatch(name)
    site = (place[1], int(place[2])) if place else None
    found = find_steps(log, site)
    if found is None:
        if name is None and steps is None:
            return RunPart()
        raise _unknown(log, name)
    if steps is not None:
        if not (name is None or site or name == ALL):
            raise _unknown(log, name)
        chosen = _sliced(log, found.steps, steps, "steps")
        listed = chosen[0].name if len(chosen) == 1 else f"{chosen[0].name} to {chosen[-1].name}"
        return _part(all_steps(chosen), listed, f" of {_about(found)}")
    if name is None and not is_steady:
        return RunPart()
    if name is None or site:
        steady = found.steps[found.steady]
        said = f", the steady one of {_about(found)}"
        return replace(_part(steady.window, steady.name, said), startup=found.startup)
    return _called(log, name, found)


def _called(log: OpLog, name: str, found: RunSteps) -> RunPart:
    """Return the part of a run with steps that has a name."""
    if name == STARTUP:
        return _part(found.startup, STARTUP, f" before {_about(found)}")
    if name == REST:
        # A run without time between steps has no rest.
        steps_and_before = joined([found.startup, all_steps(found.steps)])
        return _part(steps_and_before.outside(log.end_ps), REST, f" beside {_about(found)}")
    for each in found.steps:
        if each.name == name:
            return _part(each.window, name, f" of {_about(found)}")
    raise _unknown(log, name, found)


def _part(window: Window, name: str, more: str) -> RunPart:
    return RunPart(window, name, f"{name}: {format_ns(window.mean_ps / 1000)}{more}")


def _about(steps: RunSteps) -> str:
    return f"{len(steps.steps)} steps, found by {steps.found_by}"


def _sliced(log: OpLog, given: Sequence[T], text: str, what: str) -> Sequence[T]:
    match = _SLICE.fullmatch(text.strip())
    if match is None or not text.strip():
        said = f"--steps takes a number or a slice such as 3, 2: or 2:5, but got {text!r}"
        raise UsageError(said)
    one, first, last = (None if each is None else int(each) for each in match.groups())
    if one is not None:
        first, last = one, (one + 1) or None
    chosen = given[first:last]
    if not chosen:
        raise UsageError(
            log.about(f"--steps {text} are none of its {len(given)} {what}, 0 to {len(given) - 1}")
        )
    return chosen


def _unknown(log: OpLog, name: str | None, steps: RunSteps | None = None) -> Exception:
    own = [*(each.name for each in steps.steps)] if steps else []
    names = list(dict.fromkeys([*range_names(log), *own]))
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
    return UnknownNameError(
        log.about(f"no range or step of this run is called {name!r}; {said}; all, start-up, rest")
    )
