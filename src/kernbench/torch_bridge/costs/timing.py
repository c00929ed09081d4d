"""An operation's schedule in every state that it may meet its device in."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.op_log import Template


class OperationTiming:
    """Schedules by state, worked out when they are first met.

    ``make`` is told whether the kernel waited in the device's queue.
    """

    __slots__ = ("_idle", "_make", "_queued")

    def __init__(self, make: Callable[[bool], Template]) -> None:
        self._make = make
        self._idle: Template | None = None
        self._queued: Template | None = None

    def template(self, queued: bool) -> Template:
        """Return the schedule in a state."""
        if queued:
            if self._queued is None:
                self._queued = self._make(True)
            return self._queued
        if self._idle is None:
            self._idle = self._make(False)
        return self._idle
