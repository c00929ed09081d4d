"""Ctrl-C that is not lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from kernbench.interrupts import RETRY_S, is_swallowed


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT inside the block, but never where it would be swallowed.

    A program that makes and drops tensors spends much of its time in finalizers; an interrupt that
    comes just then is raised a moment later. SIGINT that the parent process ignores stays ignored.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        if not is_swallowed(frame):
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)

    alarm = signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        _restore(alarm)


def _restore(alarm: Any) -> None:
    """Put the handlers back, also where another interrupt comes just then."""
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)
    except KeyboardInterrupt:
        _restore(alarm)
        raise
