"""Uninitialized memory: loads of it whose lanes are used, and atomics on it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kernbench.checks import Allowed, remedy
from kernbench.dtypes import Array
from kernbench.errors import UninitializedReadError
from kernbench.memory import Buffer
from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer.accesses import Mark, WatchedAccess
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.facts.lanes import mark_written, unwritten_lanes
from kernbench.sanitizer.facts.shadows import IDS, Shadow
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.ordering.touches import is_blind
from kernbench.sanitizer.origins import Origin, UsedLane


class NeverWritten(Origin):
    """The lane was loaded from uninitialized memory."""

    def report(self, used: UsedLane, state: LaunchState) -> None:
        raise UninitializedReadError(
            f"{state.notes[Unwritten][self.line]}; {used.here} {used.what}: it comes from "
            f"there{self.through}; initialise the tensor, mask the load, "
            f"{remedy(Allowed.UNINITIALIZED_READS)}"
        )


class Unwritten(Check):
    """Tracks written bytes, and marks lanes loaded from unwritten ones (ADR-0020 D2, ADR-0107 D3).

    A loaded lane may be discarded by a selection; an atomic's effect cannot, and is refused.
    """

    allowed_by = Allowed.UNINITIALIZED_READS

    def begin(self, launch: LaunchState) -> Any:
        """Return, by the line of a load, a text that names the first unwritten place it read."""
        return {}

    def before(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        if access.stored is not None or is_blind(access.command):
            return [partial(_write, access)]
        return [] if access.is_plain else [partial(_refuse, access)]

    def marks(self, access: WatchedAccess) -> list[Mark]:
        if not access.is_plain:
            return []
        return [partial(_mark, access, self.kernel.origins.number(NeverWritten(access.site.line)))]


def _write(access: WatchedAccess, frame: Frame) -> None:
    written = _written_of(access.buffer(frame))
    if written is not None:
        mark_written(written, access.find(frame).where, access.site.itemsize)


def _refuse(access: WatchedAccess, frame: Frame) -> None:
    missing = _missing(access, frame)
    if missing is not None:
        raise UninitializedReadError(
            f"{_in_words(access, frame, missing)}; initialise the tensor, mask the access, "
            f"{remedy(Allowed.UNINITIALIZED_READS)}"
        )


def _mark(access: WatchedAccess, number: int, frame: Frame) -> Shadow:
    if access.buffer(frame).written is None:
        return None
    missing = _missing(access, frame)
    if missing is None:
        return None
    state: LaunchState = frame.state
    places = state.notes[Unwritten]
    if access.site.line not in places:
        places[access.site.line] = _in_words(access, frame, missing)
    shadow: Array = np.zeros((frame.num_programs, *access.site.access.shape), IDS)
    shadow.reshape(-1)[access.find(frame).positions[missing]] = number
    return shadow


def _missing(access: WatchedAccess, frame: Frame) -> Array | None:
    """Return which lanes access an unwritten byte, or None if none does."""
    written = _written_of(access.buffer(frame))
    if written is None:
        return None
    return unwritten_lanes(written, access.find(frame).where, access.site.itemsize)


def _in_words(access: WatchedAccess, frame: Frame, missing: Array) -> str:
    lanes, site, at = access.find(frame), access.site, int(np.argmax(missing))
    return (
        f"{access.here(frame, int(lanes.positions[at]))} {site.verb} {site.itemsize} bytes at "
        f"{access.element(frame, int(lanes.where[at]))}, which nothing has written"
    )


def _written_of(buffer: Buffer) -> Array | None:
    """Return the buffer's map of written bytes, which is dropped once all are written."""
    written = buffer.written
    # Most often the end is written last.
    if written is not None and len(written) and written[-1] and written.all():
        buffer.written = written = None
    return written
