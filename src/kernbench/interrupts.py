"""Where an interrupt (Ctrl-C) would be lost or do harm, and how soon to try again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from operator import call
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

RETRY_S = 0.001
_SWALLOWING = frozenset({"__del__", "remove", "_remove"})
"""Where Python only prints exceptions: finalizers, and the callbacks of weak references."""
_UNBROKEN: set[CodeType] = {
    # C++ that Python calls back has no place for an exception: the process would be aborted.
    ExtensionFileLoader.create_module.__code__,
    ExtensionFileLoader.exec_module.__code__,
}

P = ParamSpec("P")
R = TypeVar("R")


def unbroken(function: Callable[P, R]) -> Callable[P, R]:
    """Let interrupts wait until a function has returned; it must do so soon."""
    _UNBROKEN.add(function.__code__)
    return function


def is_untimely(frame: FrameType | None) -> bool:
    """Return whether an interrupt that is raised in a frame would be lost, or do harm."""
    while frame is not None:
        if frame.f_code.co_name in _SWALLOWING or frame.f_code in _UNBROKEN:
            return True
        frame = frame.f_back
    return False


def frame_of(thread_id: int | None) -> FrameType | None:
    """Return the innermost frame of a thread, or None where it has not begun or has ended.

    Python 3.11 holds the lock of its list of threads while it makes the frames. A garbage
    collection there may run finalizers, which let other threads run, and those wait for the lock
    when they start, end or interrupt a thread: all wait for ever (CPython issue 106883). So nothing
    is collected meanwhile. The three calls are made from C: no other thread runs between them.
    """
    if not gc.isenabled():
        return sys._current_frames().get(thread_id or 0)
    results: list[Any] = list(map(call, (gc.disable, sys._current_frames, gc.enable)))
    frame: FrameType | None = results[1].get(thread_id or 0)
    return frame
