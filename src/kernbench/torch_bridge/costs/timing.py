"""An operation's schedule in every state that it may meet its device in."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.op_log import Template


class OperationTiming:
    """Schedules by state, worked out when they are first met.

    ``make`` is given the share of HBM bandwidth that transfers take, and whether the kernel waited
    in the device's queue.
    """

    __slots__ = ("_known", "_make")

    def __init__(self, make: Callable[[float, bool], Template]) -> None:
        self._make = make
        self._known: dict[tuple[float, bool], Template] = {}

    def template(self, comm_share: float, queued: bool) -> Template:
        """Return the schedule in a state."""
        key = (comm_share, queued)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(comm_share, queued)
        return found
