"""Where in the user's program something happened."""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"
_LIBRARIES = tuple(
    {
        f"{Path(sysconfig.get_paths()[name]).resolve()}/"
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)
# Of other environments, too: one may be stacked on another by a .pth file.
_INSTALLED = re.compile(r"/(site|dist)-packages/")
# What PyTorch's compiler has written: a file is named by a hash, its folder by the hash's begin.
_GENERATED = re.compile(r"/(\w\w)/c\1\w{49}\.py$")
# Benches ship inside the installed package, but they are programs like the user's own.
_BENCHES = _PACKAGE + "benches/"


@dataclass(frozen=True, slots=True)
class UserSite:
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


class _Owners(dict[str, str]):
    """Whose a file is: ours, a library's, or the program's own (empty)."""

    def __missing__(self, file: str) -> str:
        if file.startswith(_BENCHES):
            owner = ""
        elif file.startswith(_PACKAGE):
            owner = "ours"
        else:
            # Code without a file, and Python's own frozen modules, name themselves in brackets.
            is_library = (
                file.startswith((*_LIBRARIES, "<"))
                or _INSTALLED.search(file)
                or _GENERATED.search(file)
            )
            owner = "library" if is_library else ""
        self[file] = owner
        return owner


_REFERENCES_OF_COPY = 3
"""References of a copy: by the frame, by the variable here, and by the call that counts them."""
_OWNERS = _Owners()
"""Stacks of PyTorch are deep, and are looked through at each collective."""
known_owner = _OWNERS.get
"""Returns whose a file is (empty: the program's), or None if it was not looked at before."""


def user_site(frame: FrameType | None = None) -> UserSite:
    """Return the innermost line that is the program's own, from ``frame`` or the caller on.

    That is one of neither kernbench nor a library (Triton, PyTorch); where there is none, of the
    innermost library.
    """
    if frame is None:
        frame = sys._getframe(1)
    frame_type = frame_of_program(frame) or _frame_of_library(frame)
    return UserSite(frame_type.f_code.co_filename, frame_type.f_lineno)


def frame_of_program(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is the program's own, from one on; None if there is none."""
    owners = _OWNERS
    while frame is not None and owners[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def _frame_of_library(frame: FrameType) -> FrameType:
    """Return the innermost frame of a library, else the outermost one."""
    while _OWNERS[frame.f_code.co_filename] != "library" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_of_program(file: str) -> bool:
    """Return whether a file is the program's own: none of kernbench, and none of a library."""
    return not _OWNERS[file]


def owner_of(frame: FrameType | None) -> Any:
    """Return what a method was called on whose frame this is; None if it has no self."""
    return None if frame is None else local_of(frame, "self")


def local_of(frame: FrameType, name: str) -> Any:
    """Return a local variable of a frame, or None; nothing that it drops later is kept."""
    values = frame.f_locals
    value = values.get(name)
    is_copy = type(values) is dict and frame.f_code.co_flags & CO_OPTIMIZED
    if is_copy and sys.getrefcount(values) == _REFERENCES_OF_COPY:
        # Before Python 3.13 a function's frame keeps it; nobody else asked for locals().
        values.clear()
    return value


def raised_at(error: BaseException) -> UserSite:
    """Return the innermost line that is the program's own, of those that an error came through.

    Where there is none, of the innermost library, else of kernbench.
    """
    # Not by the callers of the last frame: a generator that has ended has forgotten its caller.
    innermost: dict[str, TracebackType] = {}
    traceback = error.__traceback__
    while traceback is not None:
        innermost[_OWNERS[traceback.tb_frame.f_code.co_filename]] = traceback
        traceback = traceback.tb_next
    traceback_type = innermost.get("") or innermost.get("library") or innermost["ours"]
    code = traceback_type.tb_frame.f_code
    # An interrupt may come before a function's first line.
    return UserSite(code.co_filename, traceback_type.tb_lineno or code.co_firstlineno)
