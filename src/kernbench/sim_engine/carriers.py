"""What a rank's code runs on: a greenlet, or a thread of its own that takes turns with main.

Greenlets are cheap, and enough for plain Python. A library with state per operating-system thread,
as PyTorch's is, needs threads; still exactly one of them runs at a time, and main decides which.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from types import FrameType
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from kernbench.errors import InternalError


class Worker(Protocol):
    """Code that runs when it is switched to, until it hands back the handle that it waits for."""

    @property
    def dead(self) -> bool: ...

    @property
    def gr_frame(self) -> FrameType | None: ...

    def __bool__(self) -> bool:
        """Return whether it has begun and not ended."""

    def switch(self) -> Any: ...

    def throw(self, error: type[BaseException]) -> Any: ...


ToMain = Callable[[Any], object]
"""Called by the worker's own code: hand something to main, return when main switches back."""
Carrier = Callable[[Callable[[], None]], tuple[Worker, ToMain]]
"""Makes the worker for a function that never raises."""
MakeThread = Callable[[Callable[[], None]], threading.Thread]

# A run may replace these for the threads of its programs, not for ours.
_lock = threading.Lock
_Thread, _start, _join = threading.Thread, threading.Thread.start, threading.Thread.join


def on_greenlet(run: Callable[[], None]) -> tuple[Worker, ToMain]:
    """Return a greenlet whose parent is the caller's."""
    worker = greenlet(run)
    # A greenlet starts with an empty context; a rank sees the run that spawned it.
    worker.gr_context = copy_context()
    return worker, getcurrent().switch


def on_thread(name: str, before: Callable[[], None], make: MakeThread | None = None) -> Carrier:
    """Return the carrier for one thread; ``before`` is called on main ahead of each switch to it.

    ``make`` gives the thread, not yet started, for its target. Then it starts at once, to wait for
    its turn; else it starts when it is switched to for the first time. Interrupts (Ctrl-C) that
    reach main while the thread runs are raised in the thread.
    """

    def carry(run: Callable[[], None]) -> tuple[Worker, ToMain]:
        worker = _ThreadWorker(run, before)
        if make is None:
            worker.thread = _Thread(target=worker.main, name=name, daemon=True)
        else:
            worker.thread = make(worker.main)
            worker.thread_starts()
        return worker, worker.to_main

    return carry


_LOOK_S = 0.2
"""How often main looks for signals, which need not wake the thread that has to handle them."""


class _ThreadWorker:
    """A thread and the baton that it shares with main: two locks, of which one is free in turn."""

    thread: threading.Thread

    def __init__(self, run: Callable[[], None], before: Callable[[], None]) -> None:
        self.dead = False
        self._run = run
        self._context = copy_context()
        self._before = before
        self._mine = _lock()
        self._mine.acquire()
        self._mains = _lock()
        self._mains.acquire()
        self._is_back = False
        """Whether main has the baton. The lock only wakes it: an interrupt may come in between."""
        self._handed: Any = None
        self._thrown: type[BaseException] | None = None

    def __bool__(self) -> bool:
        return self.thread.ident is not None and not self.dead

    @property
    def gr_frame(self) -> FrameType | None:
        ident = self.thread.ident
        return None if ident is None or self.dead else sys._current_frames().get(ident)

    def thread_starts(self) -> None:
        """Start the thread; it waits for its turn."""
        try:
            _start(self.thread)
        except KeyboardInterrupt:
            # It has begun: what is interrupted is only the wait for its sign of life.
            self._interrupt()

    def switch(self) -> Any:
        if self.dead:
            raise InternalError(f"thread {self.thread.name} has ended and cannot go on")
        self._before()
        self._is_back = False
        if self.thread.ident is None:
            self.thread_starts()
        self._mine.release()
        while not self._is_back:
            try:
                self._mains.acquire(timeout=_LOOK_S)
            except KeyboardInterrupt:
                if not self._is_back:
                    self._interrupt()
        if self.dead:
            _join(self.thread)
        handed, self._handed = self._handed, None
        return handed

    def throw(self, error: type[BaseException]) -> Any:
        self._thrown = error
        return self.switch()

    def to_main(self, handed: Any) -> None:
        self._handed = handed
        self._give_back()
        self._take()

    def main(self) -> None:
        """Run in the thread."""
        try:
            self._take()
            self._context.run(self._run)
        except SystemExit:
            # It was ended before it began.
            return
        finally:
            self.dead = True
            self._give_back()

    def _take(self) -> None:
        self._mine.acquire()
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown

    def _give_back(self) -> None:
        self._is_back = True
        if self._mains.locked():
            self._mains.release()

    def _interrupt(self) -> None:
        ident = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))


def is_running_in(main: greenlet) -> bool:
    """Return whether ``main`` is the greenlet that executes this very call."""
    return getcurrent() is main


def current_greenlet() -> greenlet:
    """Return the greenlet that executes this very call."""
    return getcurrent()
