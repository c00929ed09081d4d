"""Where in the user's program something happened."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"
_LIBRARIES = tuple(
    {
        f"{Path(sysconfig.get_paths()[name]).resolve()}/"
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)
# Benches ship inside the installed package, but they are programs like the user's own.
_BENCHES = _PACKAGE + "benches/"


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@cache
def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_BENCHES)


@cache
def _is_library(file: str) -> bool:
    # Code without a file, and Python's own frozen modules, name themselves in brackets.
    return file.startswith((*_LIBRARIES, "<")) and not file.startswith(_BENCHES)


def user_site(frame: FrameType | None = None) -> Site:
    """Return the innermost line that is the program's own, from ``frame`` or the caller on.

    That is one of neither kernbench nor a library (Triton, PyTorch); where there is none, of the
    innermost library.
    """
    if frame is None:
        frame = sys._getframe(1)
    outermost, library = frame, None
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_ours(file):
            if not _is_library(file):
                return Site(file, frame.f_lineno)
            library = library or frame
        outermost = frame
        frame = frame.f_back
    found = library or outermost
    return Site(found.f_code.co_filename, found.f_lineno)


def raised_at(error: BaseException) -> Site:
    """Return the innermost line that is the program's own, of those that an error came through."""
    traceback, frame = error.__traceback__, None
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
    return user_site(frame)


def user_lines(most: int) -> tuple[Site, ...]:
    """Return the program's own lines on the caller's stack, the innermost first."""
    found: list[Site] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < most:
        file = frame.f_code.co_filename
        if not _is_ours(file) and not _is_library(file):
            found.append(Site(file, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)
