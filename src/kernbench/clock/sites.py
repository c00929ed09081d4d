"""Where in the user's program something happened."""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
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
    found = frame_of_program(frame) or _frame_of_library(frame)
    return UserSite(found.f_code.co_filename, found.f_lineno)


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
    """Return what a library's method was called on whose frame this is; None if it has no self.

    For functions that never ask for their own ``locals()``.
    """
    if frame is None:
        return None
    values = frame.f_locals
    owner = values.get("self")
    if type(values) is dict:
        # Before Python 3.13 this is a copy, which would keep what the function drops.
        values.clear()
    return owner


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
    found = innermost.get("") or innermost.get("library") or innermost["ours"]
    code = found.tb_frame.f_code
    # An interrupt may come before a function's first line.
    return UserSite(code.co_filename, found.tb_lineno or code.co_firstlineno)
