"""What a rank's code runs on: a greenlet, or a thread of its own that takes turns with main.

Greenlets are cheap, and enough for plain Python. A library with state per operating-system thread,
as PyTorch's is, needs threads; still exactly one of them runs at a time, and main decides which.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import FrameType
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from kernbench.errors import InternalError
from kernbench.interrupts import RETRY_S, frame_of, is_untimely


class CarriedCode(Protocol):
    """Code that runs when it is switched to, until it yields the handle that it waits for."""

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
Carrier = Callable[[Callable[[], None]], tuple[CarriedCode, ToMain]]
"""Makes the worker for a function that never raises."""
MakeThread = Callable[[Callable[[], None]], threading.Thread]

# A run may replace these for the threads of its programs, not for ours.
_lock = threading.Lock
_Thread, _start, _join = threading.Thread, threading.Thread.start, threading.Thread.join


def on_greenlet(run: Callable[[], None]) -> tuple[CarriedCode, ToMain]:
    """Return a greenlet whose parent is the caller's."""
    worker = greenlet(run)
    # A greenlet starts with an empty context; a rank sees the run that spawned it.
    worker.gr_context = copy_context()
    return worker, getcurrent().switch


class CtrlC(KeyboardInterrupt):
    """An interrupt that came from outside, and not from a program that raises one."""


def on_thread(
    name: str,
    before: Callable[[], None],
    make: MakeThread | None = None,
    interrupted: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> Carrier:
    """Return the carrier for one thread; ``before`` is called on main ahead of each switch to it.

    ``after`` is called on main when it has the turn again.

    ``make`` gives the thread, not yet started, for its target. Then it starts at once, to wait for
    its turn; else it starts when it is switched to for the first time. Interrupts (Ctrl-C) that
    reach main while the thread runs are raised in the thread, as :class:`CtrlC`; then
    ``interrupted`` is called on main, for what runs in the thread may keep the error to itself.
    """

    def carry(run: Callable[[], None]) -> tuple[CarriedCode, ToMain]:
        worker = _ThreadWorker(run, before, interrupted, after)
        if make is None:
            worker.thread = _Thread(target=worker.main, name=name, daemon=True)
        else:
            worker.thread = make(worker.main)
            worker.thread_starts()
        return worker, worker.to_main

    return carry


_LOOK_S = 0.2
"""How often main looks for signals, which need not wake the thread that has to handle them."""


@contextmanager
def taking_turns() -> Iterator[None]:
    """Let a thread that wakes another go on until it waits itself, as do threads started in here.

    Linux lets the other one interrupt it, to find that it still has Python's lock: two switches of
    threads more at each turn. Nothing changes where a policy was chosen, or none can be.
    """
    is_usual = hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER
    usual = os.sched_param(0) if is_usual else None
    with suppress(OSError):
        if usual is not None:
            os.sched_setscheduler(0, os.SCHED_BATCH, usual)
    try:
        yield
    finally:
        with suppress(OSError):
            if usual is not None:
                os.sched_setscheduler(0, os.SCHED_OTHER, usual)


class _ThreadWorker:
    """A thread and the baton that it shares with main.

    The baton is two facts, each written by who has it: the number of turns that main has given, and
    whether main has it back. Two locks only wake who waits for them. So an interrupt, which may be
    raised between any two instructions, finds a baton that exactly one has.
    """

    thread: threading.Thread

    def __init__(
        self,
        run: Callable[[], None],
        before: Callable[[], None],
        interrupted: Callable[[], None] | None,
        after: Callable[[], None] | None,
    ) -> None:
        self.dead = False
        self._interrupted = interrupted
        self._run = run
        self._context = copy_context()
        self._before = before
        self._after = after
        self._turn = 0
        self._is_back = False
        self._mine = _lock()
        self._mine.acquire()
        self._mains = _lock()
        self._mains.acquire()
        self._handed: Any = None
        self._thrown: type[BaseException] | None = None
        self._interrupt: _Interrupt | None = None
        self._was_interrupted = False
        """Outside of what it runs, which therefore knows nothing of it."""

    def __bool__(self) -> bool:
        return self.thread.ident is not None and not self.dead

    @property
    def gr_frame(self) -> FrameType | None:
        return None if self.dead else frame_of(self.thread.ident)

    def thread_starts(self) -> None:
        """Start the thread; it waits for its turn."""
        try:
            _start(self.thread)
        except KeyboardInterrupt:
            # It has begun: what is interrupted is only the wait for its sign of life.
            self._interrupt = _Interrupt()

    def switch(self) -> Any:
        if self.dead:
            raise InternalError(f"thread {self.thread.name} has ended and cannot be resumed")
        if self.thread.ident is None:
            self.thread_starts()
        self._hand_over()
        while self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            interrupt.take_back(self.thread)
            if self._interrupted is not None:
                self._interrupted()
            if interrupt.was_raised:
                break
            if self.dead:
                raise CtrlC
            # It came to a wait before it could be interrupted.
            self._thrown = CtrlC
            self._hand_over()
        if self.dead:
            _join(self.thread)
            if self._was_interrupted:
                raise KeyboardInterrupt
        handed, self._handed = self._handed, None
        return handed

    def _hand_over(self) -> None:
        """Give the thread its turn, until it yields to main."""
        self._before()
        turn = self._turn + 1
        while self._turn != turn or not self._is_back:
            try:
                if self._turn != turn:
                    self._is_back = False
                    self._turn = turn
                    _wake(self._mine)
                waits = self._interrupt is not None and not self._interrupt.was_sent
                self._mains.acquire(timeout=RETRY_S if waits else _LOOK_S)
                if waits and not self._is_back and self._interrupt is not None:
                    self._interrupt.send(self.thread)
            except KeyboardInterrupt:
                self._interrupt = _Interrupt()
                _wake(self._mine)
        if self._after is not None:
            self._after()

    def throw(self, error: type[BaseException]) -> Any:
        self._thrown = error
        return self.switch()

    def to_main(self, handed: Any) -> None:
        turn = self._turn
        try:
            self._handed = handed
            self._give_back()
            self._take(turn)
        except KeyboardInterrupt:
            if self._is_back or self._turn != turn:
                # Main was told: this thread may resume when it is its turn again.
                self._take(turn)
            raise

    def main(self) -> None:
        """Run in the thread."""
        try:
            self._take(0)
            self._context.run(self._run)
        except SystemExit:
            # It was ended before it began.
            return
        except KeyboardInterrupt:
            self._was_interrupted = True
        finally:
            self._end()

    def _end(self) -> None:
        while not self._is_back:
            try:
                self.dead = True
                self._give_back()
            except KeyboardInterrupt:
                continue

    def _take(self, turn: int) -> None:
        """Wait for the turn after a given one."""
        while self._turn == turn:
            self._mine.acquire()
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown

    def _give_back(self) -> None:
        self._is_back = True
        _wake(self._mains)


class _Interrupt:
    """One Ctrl-C on its way to a thread."""

    def __init__(self) -> None:
        self.was_sent = False
        self.was_raised = False

        def init(error: BaseException, *args: object) -> None:
            self.was_raised = True

        # Python makes it where the thread meets it; nothing else says that it did.
        self._kind = type("KeyboardInterrupt", (CtrlC,), {"__init__": init})
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._swallowed

    def _swallowed(self, unraisable: Any) -> None:
        """Send it again where it met a finalizer that had begun after it was sent."""
        if unraisable.exc_type is self._kind:
            self.was_sent = self.was_raised = False
        else:
            self._unraisable(unraisable)

    def send(self, thread: threading.Thread) -> None:
        """Raise it in a thread, unless it would be swallowed just now."""
        if is_untimely(frame_of(thread.ident)):
            return
        self.was_sent = True
        _raise_in(thread, ctypes.py_object(self._kind))

    def take_back(self, thread: threading.Thread) -> None:
        """Make sure that it is no longer raised."""
        _raise_in(thread, None)
        if sys.unraisablehook == self._swallowed:
            sys.unraisablehook = self._unraisable


def _raise_in(thread: threading.Thread, error: Any) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), error)


def _wake(lock: Any) -> None:
    if lock.locked():
        lock.release()


def is_running_in(main: greenlet) -> bool:
    """Return whether ``main`` is the greenlet that executes this very call."""
    return getcurrent() is main


def current_greenlet() -> greenlet:
    """Return the greenlet that executes this very call."""
    return getcurrent()
