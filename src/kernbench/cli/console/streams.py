"""A closed pipe behind stdout or stderr, as of `head`, is not a failure (ADR-0110 D5)."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, TextIO


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
