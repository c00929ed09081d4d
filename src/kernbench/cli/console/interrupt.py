"""Ctrl-C that is never lost, and a process that cleans up when it is terminated."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from kernbench.interrupts import RETRY_S, is_untimely
from kernbench.outputs import take_away

_signal, _getsignal, _set_timer = signal.signal, signal.getsignal, signal.setitimer
_kill, _getpid = os.kill, os.getpid
"""Python's own: in a rank of a PyTorch program the names are of what is the rank's (ADR-0214)."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_DEFAULTS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT inside the block, but never where it would be lost.

    A program that makes and drops tensors spends much of its time in finalizers; an interrupt that
    comes just then is raised a moment later. SIGTERM and SIGHUP end the process as ever, but take
    away files that are half written. Signals that the parent process ignores stay ignored.
    """
    ours = [name for name, usual in _DEFAULTS.items() if _getsignal(name) is usual]
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler()
    before: dict[int, Any] = {signal.SIGALRM: _signal(signal.SIGALRM, handler)}
    for number in reversed(ours):  # from SIGINT on, an interrupt may come
        before[number] = _signal(number, handler)
    try:
        yield
    finally:
        _restore(handler, before)


class _Handler:
    """Handles signals, deferring them where they must not interrupt."""

    def __init__(self) -> None:
        self._waiting: set[int] = set()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            self._waiting.add(number)
        if is_untimely(frame):
            _set_timer(signal.ITIMER_REAL, RETRY_S)
            return
        waiting, self._waiting = self._waiting, set()
        for ending in _ENDING:
            if ending in waiting:
                take_away()
                _signal(ending, signal.SIG_DFL)
                _kill(_getpid(), ending)
        if signal.SIGINT in waiting:
            raise KeyboardInterrupt


def _restore(handler: _Handler, before: dict[int, Any]) -> None:
    """Restore the handlers, even if another interrupt arrives meanwhile."""
    try:
        _set_timer(signal.ITIMER_REAL, 0)
        for number, value in before.items():
            if number == signal.SIGINT or _getsignal(number) is handler:
                _signal(number, value)
    except KeyboardInterrupt:
        _restore(handler, before)
        raise
