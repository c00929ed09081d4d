"""A closed pipe behind stdout or stderr, as of `head`, is not a failure (ADR-0110 D5)."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO

from kernbench.interrupts import RETRY_S, is_untimely
from kernbench.open_files import open_files, write_out, written_files
from kernbench.outputs import take_away


class _Pipe(io.FileIO):
    """A pipe that discards what is written once its reader has closed it."""

    needs_reader = False
    """Whether the program gets a BrokenPipeError, as it would from plain Python."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            if self.needs_reader:
                raise
            # The descriptor, so that flushes at the end and other writers are served, too.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Keep a closed pipe behind stdout or stderr from failing anything in the block."""
    before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    sys.stdout = sys.__stdout__ = _patient(sys.stdout, sys.__stdout__)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _patient(sys.stderr, sys.__stderr__)  # type: ignore[misc]
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.flush()
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]


def _patient(stream: TextIO | None, original: TextIO | None) -> Any:
    if stream is None or stream is not original or not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        mode = os.fstat(stream.fileno()).st_mode
        stream.flush()
    except (OSError, ValueError):
        return stream
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return stream
    raw: Any = _Pipe(stream.fileno(), "w", closefd=False)
    raw.name = stream.name
    is_buffered = isinstance(stream.buffer, io.BufferedWriter)
    patient: Any = io.TextIOWrapper(
        io.BufferedWriter(raw) if is_buffered else raw,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    patient.mode = "w"
    return patient


@contextlib.contextmanager
def streams_of_command() -> Iterator[None]:
    """Give the command its stdout and stderr back after a program that replaced or closed them."""
    names = ("stdout", "stderr")
    before = {name: getattr(sys, name) for name in names}
    spares = {name: _spare(stream) for name, stream in before.items()}
    try:
        yield
    finally:
        for name, stream in before.items():
            replaced = getattr(sys, name)
            if replaced is not stream:
                with contextlib.suppress(Exception):  # it is the program's
                    replaced.flush()
            spare = spares[name]
            if getattr(stream, "closed", False) and spare is not None:
                stream = os.fdopen(spare, "w", encoding=stream.encoding, errors=stream.errors)
                setattr(sys, f"__{name}__", stream)
            elif spare is not None:
                os.close(spare)
            setattr(sys, name, stream)


def _spare(stream: Any) -> int | None:
    """Return another descriptor of a stream's file, None if it has none."""
    try:
        return os.dup(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


@contextlib.contextmanager
def ends_without_reader() -> Iterator[None]:
    """End a program whose output is a closed pipe, as the operating system ends one."""
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(raw, _Pipe):
        yield
        return
    raw.needs_reader = True
    try:
        yield
    finally:
        raw.needs_reader = False


def leave(status: int) -> None:
    """End the process now if that changes nothing a user can observe; else return.

    Python would first take apart all that PyTorch and Triton have made, which takes a tenth of the
    time of a short program. Functions registered with ``atexit`` run and output is written, as
    always. Other threads, profilers and debuggers are waited for in Python's own way.
    """
    others = [thread for thread in threading.enumerate() if not thread.daemon]
    if len(others) > 1 or sys.getprofile() is not None or sys.gettrace() is not None:
        return
    atexit._run_exitfuncs()
    if written_files():
        write_out(open_files(), is_end=True)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # somebody reads it
                stream.flush()
    except (OSError, ValueError):  # ValueError: closed
        return
    os._exit(status)


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
