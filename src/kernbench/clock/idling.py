"""Waits that only time ends: sleeps, and polls for an end (ADR-0120).

A program that looks again and again keeps the clock going although nothing happens any more. What
was to happen by a time is found missing when such a wait would pass that time, and not before: else
it would not be seen that a run without such waits is stuck.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from simpy import Event

from kernbench.clock.deadlock import idle_error
from kernbench.clock.handles import Handle, Timer

if TYPE_CHECKING:
    from kernbench.clock.simulation import Simulation

_MANY = 1 << 14
"""How many waits in a row, in which nothing else can happen, are exact; later ones grow."""
_GROWTH_SHIFT = 9
"""All of them together by 1/512 of the time that they have lasted, as long as that at most."""
_LONG_PS = 24 * 3600 * 10**12
"""After so long of many such waits nothing is hoped for any more."""


class Limited(Protocol):
    """Something that has a deadline."""

    deadline_ps: int

    def give_up(self) -> None:
        """Record that it has not happened by then."""


class Idling:
    """The waits of one simulation that only time ends, and what has to happen by a time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._ends_ps: dict[Event, int] = {}
        """The ends of entries of the event queue in which nothing happens but that a rank
        resumes."""
        self._in_a_row = 0
        self._since_ps = 0
        self._limited: dict[Limited, None] = {}
        self._watched: dict[Limited, Timer] = {}
        """The waits that have an entry in the event queue, each with its timer."""

    def limit(self, limited: Limited) -> None:
        """Give ``limited`` up when its time is over, unless it is :meth:`met` before."""
        self._limited[limited] = None
        if self._ends_ps:
            self._watch(max(self._ends_ps.values()))

    def met(self, limited: Limited) -> None:
        """Record that it has happened."""
        self._limited.pop(limited, None)
        timer = self._watched.pop(limited, None)
        if timer is not None:
            self.cancel(timer)

    def forget(self) -> None:
        """Give nothing up any more that was to happen so far: nobody waits for it."""
        for limited in list(self._limited):
            self.met(limited)

    def timer(self, delay_ps: int, label: str) -> Timer:
        """Return a handle that ends ``delay_ps`` from now, for a rank to wait for.

        Raises:
            DeadlockError: For very long nothing has happened but such waits.
        """
        simulation = self._simulation
        now_ps = simulation.now_ps
        if len(simulation.env) > len(self._ends_ps):
            self._in_a_row, self._since_ps = 0, now_ps
        else:
            self._in_a_row += 1
            if self._in_a_row > _MANY:
                lasted_ps = now_ps - self._since_ps
                if lasted_ps > _LONG_PS:
                    raise idle_error(simulation, label)
                grown_ps = lasted_ps * (len(self._ends_ps) + 1) >> _GROWTH_SHIFT
                delay_ps = max(delay_ps, min(grown_ps, lasted_ps))
        self._watch(now_ps + delay_ps)
        return self._start(delay_ps, label)

    def cancel(self, timer: Event) -> None:
        """Forget what no rank waits for any more, if it is one of these timers."""
        if self._ends_ps.pop(timer, None) is not None:
            self._simulation.cancel(timer)

    def _start(self, delay_ps: int, label: str) -> Timer:
        timer = Timer(self._simulation.env, delay_ps, label)
        timer.callbacks.append(self._ended)
        self._ends_ps[timer] = self._simulation.now_ps + delay_ps
        return timer

    def _ended(self, timer: Event) -> None:
        del self._ends_ps[timer]

    def _watch(self, until_ps: int) -> None:
        """Make the clock stop at every deadline due by then."""
        now_ps = self._simulation.now_ps
        for limited in list(self._limited):
            if limited.deadline_ps <= until_ps and limited not in self._watched:
                timer = self._start(max(limited.deadline_ps - now_ps, 0), "a timeout")
                self._watched[limited] = timer
                timer.callbacks.append(partial(self._is_due, limited))

    def _is_due(self, limited: Limited, _: object) -> None:
        if limited in self._limited:
            del self._limited[limited], self._watched[limited]
            limited.give_up()


class Bounded(Handle):
    """Ends when another handle does, or when a time is over."""

    def __init__(self, idling: Idling, handle: Handle, delay_ps: int) -> None:
        super().__init__(handle.env, handle.label)
        self._idling = idling
        self._handle = handle
        self._timer = idling.timer(delay_ps, "a timeout")
        self._is_over = False
        handle.when_done(self._end)
        self._timer.when_done(self._end)

    def waits_for(self) -> tuple[int, ...]:
        return self._handle.waits_for()

    def describe(self) -> str:
        return self._handle.describe()

    def _end(self, _: object) -> None:
        if not self._is_over:
            self._is_over = True
            self._idling.cancel(self._timer)
            self.end_after(0)
