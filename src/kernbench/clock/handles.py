"""Handles: what a rank waits for while a command is pending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy import Environment, Event
from simpy.events import NORMAL, EventCallbacks


class Handle(Event):
    """A point of virtual time that ranks may wait for, and what happens there.

    A handle ends exactly once. Its outcome is :attr:`error`, not a failed SimPy event: SimPy would
    rebuild the exception from its ``args``, and an error that no rank waits for would end the run.
    """

    callbacks: EventCallbacks
    error: Exception | None = None
    """Raised in everyone who waits, once the handle has ended."""
    error_seen = False
    """Whether a rank has waited and got the error."""
    ended_by = 0
    """What it ended with, as the log numbers it (``OpLog``); 0: a rank's host, or time alone."""
    made_by = (-1, -1)
    """In a run whose actions are kept: who made it, and by which action."""
    woken_by = -1
    """The rank whose host ended it; -1: time, or a device."""
    clock: Any = None
    """What certainly comes before it, in a run with the sanitizer; else None."""
    _ok = True

    def __init__(self, env: Environment, label: str = "") -> None:
        self.env = env
        self.callbacks = []
        self.label = label

    @property
    def done(self) -> bool:
        """Whether the moment has passed; a wait then returns without a switch."""
        return self.callbacks is None

    def end_after(self, delay_ps: int) -> None:
        """End the handle ``delay_ps`` from now. Call once."""
        self._value: Any = None
        self.env.schedule(self, NORMAL, delay_ps)

    def when_done(self, callback: Callable[[Event], None]) -> None:
        """Call back when the handle ends; at once if it already has."""
        if self.callbacks is None:
            callback(self)
        else:
            self.callbacks.append(callback)

    def before_waiters(self, callback: Callable[[Event], None]) -> None:
        """Call back when the handle ends, before everyone who waits for it resumes.

        Of several such callbacks the last one comes first. The handle must not have ended.
        """
        self.callbacks.insert(0, callback)

    def waited_for(self) -> None:
        """Record that a rank has waited until this ended without an error."""

    def waits_for(self) -> tuple[int, ...]:
        """Return the ranks without which this cannot end; empty when only time is missing."""
        return ()

    def describe(self) -> str:
        """Return what an error says about a rank that waits for this."""
        return self.label or "a command"


class Timer(Handle):
    """A handle that ends ``delay_ps`` after it was made."""

    def __init__(self, env: Environment, delay_ps: int, label: str = "") -> None:
        self.env = env
        self.callbacks = []
        self.label = label
        self._value = None
        env.schedule(self, NORMAL, delay_ps)
