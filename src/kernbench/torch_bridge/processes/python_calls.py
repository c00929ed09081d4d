"""How many Python functions a simulated process calls: counted, never timed.

Python's own C profiler asks a clock at each call and each return of a Python function. Here its
clock is a counter, so that it only counts. While the bridge does what a GPU build does in C++, or
Python imports a module (with or without a compiled file), the count pauses. A program may profile
itself; until it ends that, calls are estimated.

Ranks are threads that take turns, each with a count of its own; what a library does once for all
of them counts for whichever comes first, in every run the same one.

Python runs code under a profiler slower than the calls take, so that calls are not counted for
ever: a way from one operation of the program to the next that took as many calls twice is known
(:class:`ProgramPlace`). Then nothing profiles until a count is due again, or the program goes to a
place that it has not gone to from there.

From Python 3.12 on the profiler is a tool of ``sys.monitoring``, of which there is one for all
threads, and beginning it takes longer than an operation. There a tool of ours is told of each call
for as long as a run lasts (:class:`Monitor`), and what it has counted in pauses is left out.
"""

from __future__ import annotations

import sys
import threading
from _lsprof import Profiler
from collections.abc import Callable
from itertools import count
from typing import Any

from torch.nn import Module

HAS_MONITORING = sys.version_info >= (3, 12)
_getprofile: Callable[[], Any] = sys.getprofile

FRAMES_OF_VIEW = 2
"""What PyTorch and the bridge call in Python to hand a view to the observer."""
FRAMES_OF_OPERATION = 3
"""The same for another operation, with the pause."""
FRAMES_OF_FUNCTION = 3
"""A function that stands in for C++, with the pause."""
_CERTAIN = 2
"""In how many passes in a row there must be as many calls for them to be known."""
_MOST_TRUSTED = 64
"""Calls that are known are counted again at the latest after so many times."""
_NUM_BEFORE = 6
"""How many operations before one tell its place."""
_MOST_CHANGES = 4
"""Calls from a place whose counts have changed more often are always counted."""
_MOST_LEGS = 8
"""The same for a place that leads to more places."""
_AROUND_FORWARD = (Module._wrapped_call_impl.__code__, Module._call_impl.__code__)
"""What stands around each module's ``forward``: too short to count as functions of a program."""
_FREE_TOOLS = (4, 3)
"""Tools of ``sys.monitoring`` that Python's documentation leaves to others than its own kinds."""


class Monitor:
    """Is told by ``sys.monitoring`` of each call that a thread makes, while somebody needs it."""

    def __init__(self) -> None:
        self.counted = 0
        self.thread = 0
        """Whose calls are counted: other threads of the process are no ranks, or wait."""
        self.tool = -1
        """Its number; -1 while no run needs it, or where other tools have all numbers."""
        self._num_users = 0
        self._get_ident = threading.get_ident

    def _called(self, code: object, *_: object) -> None:
        if self._get_ident() == self.thread and code not in _AROUND_FORWARD:
            self.counted += 1

    def begin(self) -> None:
        """Be told from now on, until as many have called :meth:`end`."""
        self._num_users += 1
        if self._num_users > 1:
            return
        monitoring: Any = vars(sys)["monitoring"]
        free = (tool for tool in _FREE_TOOLS if monitoring.get_tool(tool) is None)
        self.tool = next(free, -1)
        if self.tool < 0:
            return
        monitoring.use_tool_id(self.tool, "kernbench")
        events = monitoring.events
        told = (events.PY_START, events.PY_RESUME, events.PY_THROW)
        for item in told:
            monitoring.register_callback(self.tool, item, self._called)
        monitoring.set_events(self.tool, sum(told))

    def end(self) -> None:
        """End what a call of :meth:`begin` has begun."""
        self._num_users -= 1
        if self._num_users or self.tool < 0:
            return
        monitoring: Any = vars(sys)["monitoring"]
        monitoring.set_events(self.tool, 0)
        monitoring.free_tool_id(self.tool)
        self.tool = -1


MONITOR = Monitor()


class Leg:
    """What calls lie between a place and one of those that come after it."""

    __slots__ = ("num_calls", "num_equal")

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.num_equal = 1
        """How often in a row there were as many."""


class ProgramPlace:
    """Where a program calls an operation or looks at its host, and where it goes from there."""

    __slots__ = (
        "code", "func", "is_open", "lasti", "latest", "left", "legs", "next_met", "num_changes",
        "num_missed", "recent", "trusted",
    )  # fmt: skip

    def __init__(self, func: Any = None, code: Any = None, lasti: int = 0) -> None:
        self.func, self.code, self.lasti = func, code, lasti
        self.recent: tuple[int, ...] = ()
        """This operation and those before it."""
        self.next_met: ProgramPlace | None = None
        """The place of the operation after it, the last time."""
        self.legs: dict[ProgramPlace, Leg] = {}
        """The legs by where they lead, as far as somebody asked there."""
        self.latest = Leg(0)
        self.num_changes = 0
        self.num_missed = 0
        """How many of the legs nobody has counted."""
        self.left = 0
        """How often calls from here on need not be counted."""
        self.trusted = 1
        self.is_open = func is None
        """Whether they are always counted: counts change, or it is no operation's place."""

    def counted(self, then: ProgramPlace, num_calls: int) -> None:
        """Learn where the program went, with how many calls."""
        if self.is_open:
            return
        leg = self.legs.get(then)
        if leg is None:
            leg = self.legs[then] = Leg(num_calls)
            self.is_open = len(self.legs) > _MOST_LEGS
        elif not leg.num_equal:
            self.num_missed -= 1
            leg.num_calls, leg.num_equal = num_calls, 1
        elif leg.num_calls == num_calls:
            leg.num_equal += 1
        else:
            leg.num_calls, leg.num_equal = num_calls, 1
            self.num_changes += 1
            self.is_open = self.num_changes > _MOST_CHANGES
        self.latest = leg
        if leg.num_equal >= _CERTAIN and not (self.num_missed or self.is_open):
            self.left = self.trusted = min(2 * self.trusted, _MOST_TRUSTED)

    def went(self, then: ProgramPlace) -> int:
        """Return how many calls it took, which nobody has counted."""
        leg = self.legs.get(then)
        if leg is None:
            # As many as to the place before; from now on they are counted, until this leg is.
            leg = self.legs[then] = Leg(self.latest.num_calls)
            leg.num_equal = 0
            self.num_missed += 1
            self.left = self.trusted = 1
        self.left -= 1
        return leg.num_calls


class PythonCalls:
    """The calls of one process, in all its threads: one of them runs at a time."""

    def __init__(self) -> None:
        self.tick: Callable[[], int] = count().__next__
        self.num_views = 0
        """Views that nobody has asked for."""
        self.num_own = 0
        """Calls that were counted since this was last asked, but are the bridge's."""
        self.num_shared = 0
        """Calls that were made once for all ranks, and that this process would have made."""
        self.is_counted = False
        """Whether calls were counted until the latest pause."""
        self.is_known = False
        """Whether what is called until the next operation is known."""
        self.is_over = False
        """Whether it was asked since the program last ran."""
        self.is_in_cxx = False
        """Whether what calls operations now is C++ on a GPU, as autocast's casts are."""
        self.asker: Any = self
        """The function of the bridge that the program has called last: if somebody asks who is no
        operation, it tells the place."""
        self._places: dict[tuple[int, int, tuple[int, ...]], ProgramPlace] = {}
        # What was met last, what is under way if anything is, and from where calls were counted.
        self._elsewhere = self._met = self._place = self._from = ProgramPlace()
        self._seen = 0
        self.num_monitored = 0
        """Calls of which :data:`MONITOR` was told, and that :meth:`take` has not returned."""

    def comes_to(self, func: Any, code: Any, lasti: int) -> None:
        """Note that the program calls an operation, at an instruction of a code.

        Places are told apart by the operations before it, too: a layer calls many from the same
        code, and a backward pass calls all of them from one.
        """
        before = self._met
        place = before.next_met
        if (
            place is None
            or place.func is not func
            or place.lasti != lasti
            or place.code is not code
        ):
            recent = (id(func), *before.recent[:_NUM_BEFORE])
            key = (id(code), lasti, recent)
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = ProgramPlace(func, code, lasti)
                place.recent = recent
            before.next_met = place
        self._met = self._place = place

    def take(self) -> int:
        """Return how many calls the program and its libraries made since this was last asked."""
        if self.is_over:
            return 0
        self.is_over = True
        if self._place is self._elsewhere:
            # Somebody asks who is no operation: a clock, a wait, a collective.
            self.comes_to(self.asker, None, 0)
        place, self._place = self._place, self._elsewhere
        before, self._from = self._from, place
        if self.is_known:
            num_calls = before.went(place)
        else:
            num_calls = max(self._counted() - self.num_own, 0)
            self.num_own = 0
            if self.is_counted:
                before.counted(place, num_calls)
        self.is_known = place.left > 0
        return num_calls

    def _counted(self) -> int:
        """Return how many calls were counted since this was last asked."""
        if HAS_MONITORING:
            number, self.num_monitored = self.num_monitored, 0
            return number
        ticks, seen = self.tick(), self._seen
        # Asking is an event, too.
        self._seen = ticks + 1
        # Each call is an event, and so is each return.
        return (ticks - seen) // 2


class ThreadCalls:
    """Counts the calls of one thread for its process."""

    def __init__(self, calls: PythonCalls) -> None:
        self.of_process = calls
        self._thread = threading.get_ident()
        self._counted = 0
        """What the monitor had counted when this began to."""
        self._profiler = Profiler(calls.tick, 1.0, False, False)
        self._enable = self._profiler.enable
        self._disable = self._profiler.disable
        self.depth = 1
        """The depth of pauses; 0 while the program runs."""
        self.is_on = False
        """Whether the profiler counts."""

    @property
    def is_counting(self) -> bool:
        """Whether it counts right now, and no profiler of the program."""
        return self.is_on and (HAS_MONITORING or _getprofile() is self._profiler)

    def pause(self, num_own: int) -> None:
        """Do not count until the matching :meth:`resume`; this nests.

        ``num_own`` of the calls that were counted until here were made to get here.
        """
        # Deep only once it has stopped: a collection of garbage, which may come as each function
        # begins, pauses and resumes as well, and must leave it as it was.
        if self.is_on:
            self.stop(num_own)
        self.depth += 1

    def resume(self) -> None:
        """Count again, where that is due and the program itself does not profile by now."""
        self.depth -= 1
        if not self.depth:
            calls = self.of_process
            calls.is_over = False
            if not calls.is_known:
                self.start()

    def stop(self, num_own: int) -> None:
        """Stop the profiler, unless the program has put another in its place."""
        self.is_on = False
        if HAS_MONITORING:
            self.of_process.num_monitored += MONITOR.counted - self._counted
            self.of_process.num_own += num_own
        elif _getprofile() is self._profiler:
            self._disable()
            around = (
                entry.callcount
                for entry in self._profiler.getstats()
                if entry.code in _AROUND_FORWARD
            )
            self.of_process.num_own += num_own + sum(around)
            self._profiler.clear()
        else:
            self.of_process.is_counted = False

    def start(self) -> None:
        """Start the profiler, unless the program has one."""
        calls = self.of_process
        if HAS_MONITORING:
            calls.is_counted = self.is_on = MONITOR.tool >= 0
            MONITOR.thread, self._counted = self._thread, MONITOR.counted
            return
        calls.is_counted = self.is_on = _getprofile() is None
        if self.is_on:
            self._enable()

    def is_of(self, profile: Any) -> bool:
        """Return whether a profile function is this one."""
        return profile is self._profiler


class _InThread(threading.local):
    calls: ThreadCalls | None = None


IN_THREAD = _InThread()
"""What counts the calls of the calling thread, where Python takes time."""
