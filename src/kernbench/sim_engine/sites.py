"""Where in the user's program something happened."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"
# Benches ship inside the installed package, but they are programs like the user's own.
_BENCHES = _PACKAGE + "benches/"
# kernel[grid](...) goes through Triton on its way here.
_TRITON = "/triton/runtime/"


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@cache
def _is_ours(file: str) -> bool:
    return _TRITON in file or (file.startswith(_PACKAGE) and not file.startswith(_BENCHES))


def user_site(frame: FrameType | None = None) -> Site:
    """Return the innermost line that is the program's own, from ``frame`` or the caller on."""
    if frame is None:
        frame = sys._getframe(1)
    outermost = frame
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_ours(file):
            return Site(file, frame.f_lineno)
        outermost = frame
        frame = frame.f_back
    return Site(outermost.f_code.co_filename, outermost.f_lineno)
