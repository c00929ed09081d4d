"""How many Python functions a simulated process calls: counted, never timed.

Python's own C profiler asks a clock at each call and each return of a Python function. Here its
clock is a counter, so that it only counts: about 0.15 us a call. While the bridge does what a GPU
build does in C++, or Python imports a module (with or without a compiled file), the count pauses.
A program may profile itself; until it ends that, calls are estimated.

Ranks are threads that take turns, each with a count of its own; what a library does once for all
of them counts for whichever comes first, in every run the same one. From Python 3.12 on the
profiler is a tool of ``sys.monitoring``, of which there is one for all threads, and pausing it
takes longer than an operation: calls are estimated there.
"""

from __future__ import annotations

import sys
from _lsprof import Profiler
from collections.abc import Callable
from itertools import count
from typing import Any

IS_COUNTED = sys.version_info < (3, 12)
_getprofile: Callable[[], Any] = sys.getprofile


_FRAMES_OF_VIEW = 2
"""What PyTorch and the bridge call in Python to hand a view to the observer."""
_FRAMES_OF_PAUSE = 3
"""The same for another operation, with the pause itself."""


class PythonCalls:
    """The calls of one process, in all its threads: one of them runs at a time."""

    def __init__(self) -> None:
        self.tick: Callable[[], int] = count().__next__
        self.num_views = 0
        """Views since this was last asked, which are handed on while it counts."""
        self.num_pauses = 0
        """Pauses since then."""
        self.is_counted = False
        """Whether calls were counted until the latest pause."""
        self._seen = 0

    def take(self) -> int:
        """Return how many calls the program and its libraries made since this was last asked."""
        ticks = self.tick()
        # Each call is an event, and so is each return.
        num_calls = (ticks - self._seen) // 2
        num_calls -= self.num_views * _FRAMES_OF_VIEW + self.num_pauses * _FRAMES_OF_PAUSE
        # Asking is an event, too.
        self._seen = ticks + 1
        self.num_views = self.num_pauses = 0
        return max(num_calls, 0)


class ThreadCalls:
    """Counts the calls of one thread for its process."""

    def __init__(self, calls: PythonCalls) -> None:
        self._calls = calls
        self._profiler = Profiler(calls.tick, 1.0, False, False)
        self._enable = self._profiler.enable
        self._disable = self._profiler.disable
        self._depth = 1
        self._is_counting = False

    def pause(self) -> None:
        """Do not count until the matching :meth:`resume`; this nests."""
        depth, self._depth = self._depth, self._depth + 1
        if depth:
            return
        self._is_counting = self._is_counting and _getprofile() is self._profiler
        if self._is_counting:
            self._disable()
            self._calls.num_pauses += 1
        self._calls.is_counted = self._is_counting

    def resume(self) -> None:
        """Count again, unless the program itself profiles by now."""
        self._depth -= 1
        if not self._depth:
            # Where it was counted until the pause, no other profiler can have begun meanwhile.
            if not self._is_counting:
                self._is_counting = IS_COUNTED and _getprofile() is None
            if self._is_counting:
                self._enable()

    def is_of(self, profile: Any) -> bool:
        """Return whether a profile function is this one."""
        return profile is self._profiler
