"""An operation's schedule for each state of the device: idle, or with work queued before it."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.op_log import Template


class OperationTiming:
    """Schedules by state, each computed when it is first met.

    ``make`` is called with whether the kernel waited in the device's queue.
    """

    __slots__ = ("_make", "idle", "queued")

    def __init__(self, make: Callable[[bool], Template]) -> None:
        self._make = make
        self.idle: Template | None = None
        """The schedule on an idle device; None until it is first needed."""
        self.queued: Template | None = None

    def template(self, queued: bool) -> Template:
        """Return the schedule for a state of the device."""
        if queued:
            if self.queued is None:
                self.queued = self._make(True)
            return self.queued
        if self.idle is None:
            self.idle = self._make(False)
        return self.idle


class ChangingTiming(OperationTiming):
    """The timing of an operation that takes as long as the values of some operand say.

    A captured graph asks again at each replay, as the values may be others by then.
    """

    __slots__ = ("current",)

    def __init__(self, current: Callable[[], OperationTiming]) -> None:
        super().__init__(current().template)
        self.current = current
        """Returns the timing by the values at the time of the call."""
