"""Files that a program leaves open: Python writes them out at the end of its process.

It does so while it takes modules apart, one name after another. A command that goes on after a
program, or ends without taking anything apart, has to do the same: a garbage collection alone
may close what is below a file first, and what the file has not written is lost.
"""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import os
import stat
import sys
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from tempfile import _TemporaryFileWrapper
from typing import Any

_CLOSED_AT_END = (
    *(gzip.GzipFile, bz2.BZ2File, lzma.LZMAFile, zipfile.ZipFile),
    _TemporaryFileWrapper,
)
"""Classes whose files are whole, or gone, only once they were closed."""
_BUFFERS = (io.BufferedWriter, io.BufferedRandom)
_STREAMS = 3
"""Descriptors of stdin, stdout and stderr come first."""


class LeftOpen:
    """The files that a program, or several in one process, leave open from now on.

    What they hold is written when a program ends. They are kept, and closed after all: nothing
    closes what is below them before.
    """

    def __init__(self) -> None:
        self._before = written_files()
        self._files: list[Any] = []

    def keep(self) -> None:
        """Write out the files that are open at the end of a program."""
        if written_files() - self._before:
            self._files = open_files()
            write_out(self._files)

    def close(self) -> None:
        """Close what is still open after all programs."""
        write_out(self._files, is_end=True)
        self._files.clear()


def written_files() -> frozenset[str]:
    """Return the names of the files that this process has open for writing."""
    import fcntl

    files = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
        with suppress(OSError):  # the folder's own descriptor, closed by now
            number = int(name)
            if number >= _STREAMS and stat.S_ISREG(os.fstat(number).st_mode):
                access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
                if access != os.O_RDONLY:
                    files.add(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    return frozenset(files)


def open_files() -> list[Any]:
    """Return the file objects that are open and may have something to write."""
    objects = gc.get_objects()
    # By type(): what isinstance() asks of objects of others may be code. Classes are thousands of
    # times fewer than objects, and some of ours are slow to ask.
    kinds = {
        kind
        for kind in set(map(type, objects))
        if issubclass(kind, (io.TextIOWrapper, *_CLOSED_AT_END, *_BUFFERS))
    }
    return [item for item in objects if type(item) in kinds]


def write_out(files: Iterable[Any], *, is_end: bool = False) -> None:
    """Write what files still hold, the uppermost first; at the end, close those that need it."""
    files = list(files)
    for file in files:
        if issubclass(type(file), io.TextIOWrapper):
            _attempt(file, file.flush)
    for item in files if is_end else ():
        if issubclass(type(item), _CLOSED_AT_END):
            _attempt(item, item.close)
    for entry in files:
        if issubclass(type(entry), _BUFFERS):
            _attempt(entry, entry.flush)


def _attempt(file: Any, work: Callable[[], object]) -> None:
    """Do what Python's own end does, and report a failure as that does."""
    try:
        work()
    except ValueError:
        pass  # it is closed, or was detached
    except OSError as error:
        # The names are all that tells files apart.
        print(f"Exception ignored in: {file!r}\n{type(error).__name__}: {error}", file=sys.stderr)
