"""Work on a device that resumes at times of its own, and may wait for others."""

from __future__ import annotations

from collections.abc import Callable, Generator

from kernbench.clock.event_queue import EventQueue
from kernbench.clock.handles import Timer


class Task:
    """A generator that yields the time at which it resumes, or None to wait until it is woken.

    A time that has passed is now, without yielding to others. The generator runs on main, in
    the middle of the clock's work; what it raises goes to ``on_error`` and ends it.
    """

    __slots__ = ("_env", "_on_error", "_steps", "is_parked")

    def __init__(
        self,
        env: EventQueue,
        steps: Generator[int | None, None, None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.is_parked = False
        """Whether it waits to be woken."""
        self._env = env
        self._steps: Generator[int | None, None, None] | None = steps
        self._on_error = on_error

    def go_on(self) -> None:
        """Run until the next time that lies ahead."""
        while self._steps is not None:
            try:
                time_ps = next(self._steps)
            except StopIteration:
                self._steps = None
                return
            except Exception as error:
                self._steps = None
                self._on_error(error)
                return
            if time_ps is None:
                self.is_parked = True
                return
            ahead_ps = time_ps - self._env.now_ps
            if ahead_ps > 0:
                Timer(self._env, ahead_ps).callbacks.append(lambda _: self.go_on())
                return

    def wake(self) -> None:
        """Resume a parked task at the present time, after everything that is already due."""
        if self.is_parked:
            self.is_parked = False
            Timer(self._env, 0).callbacks.append(lambda _: self.go_on())

    def cancel(self) -> None:
        """End it where it is; it never resumes."""
        self._steps = None
