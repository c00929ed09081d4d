"""The events of a run in order of time: those of SimPy, with ends that may move (ADR-0036)."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

import simpy
from simpy import Event

_FEW = 64
"""Cancelled entries that are left alone, however few others there are."""


class _Cancelled(Event):
    """What an entry of the queue holds in place of the event that it was for.

    Entries are compared by what they hold only where all else is equal: where an event has moved
    away and back. Then the cancelled entry comes first.
    """

    def __init__(self) -> None:
        """Belong to no environment, and have no callbacks."""

    def __lt__(self, other: object) -> bool:
        return other is not self

    def __gt__(self, other: object) -> bool:
        return False


_CANCELLED = _Cancelled()


class _Time:
    """Has SimPy's ``_now`` in a slot, which a class can give a second name."""

    __slots__ = ("_now",)


class EventQueue(_Time, simpy.Environment):
    """SimPy's environment; the only class that touches its queue, by :meth:`reschedule` alone.

    An entry that is given up stays where it is, empty, until its time comes or such entries are
    more than half of all. So the queue stays in order without being sorted again, and what the
    event holds is free at once.
    """

    now_ps: int = vars(_Time)["_now"]
    """The time. Ranks read it at every switch: a property would make that 5 per cent slower."""

    def __init__(self) -> None:
        super().__init__()
        self._num_cancelled = 0

    def __len__(self) -> int:
        """Return how many events are yet to come."""
        return len(self._queue) - self._num_cancelled

    def __bool__(self) -> bool:
        return True

    def reschedule(self, ends_ps: Mapping[Event, int | None]) -> None:
        """Move events to other times, not before now; None cancels one.

        Among events of one time they keep the place that they were given when they were scheduled
        first. What is not scheduled (it has happened already) stays as it is.
        """
        queue = self._queue
        moved = []
        for place, (time, priority, number, event) in enumerate(queue):
            if event in ends_ps and ends_ps[event] != time:
                # The same key, so that the heap stays one.
                queue[place] = (time, priority, number, _CANCELLED)
                moved.append((ends_ps[event], priority, number, event))
        self._num_cancelled += len(moved)
        for end_ps, priority, number, event in moved:
            if end_ps is not None:
                heappush(queue, (end_ps, priority, number, event))
        if self._num_cancelled > max(_FEW, len(self)):
            queue[:] = [entry for entry in queue if entry[3] is not _CANCELLED]
            heapify(queue)
            self._num_cancelled = 0
        self._choose_step()

    def peek(self) -> float:
        """Return when the next event happens, infinity if there is none."""
        self._skip()
        return super().peek()

    def _step_over_cancelled(self) -> None:
        self._skip()
        simpy.Environment.step(self)

    def _skip(self) -> None:
        queue = self._queue
        while queue and queue[0][3] is _CANCELLED:
            heappop(queue)
            self._num_cancelled -= 1
        self._choose_step()

    def _choose_step(self) -> None:
        # Mostly nothing is cancelled. Then each event costs what it does in SimPy.
        if self._num_cancelled:
            self.step = self._step_over_cancelled  # type: ignore[method-assign]
        elif "step" in vars(self):
            del self.step
