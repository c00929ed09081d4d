"""The hash that Triton takes of its own files, kept on disk.

Triton puts it into the key of every compiled kernel. Its library has half a gigabyte, and reading
that takes longer than finding a kernel that an earlier process has compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import triton
from triton.runtime import cache as triton_cache

_ROOT = Path(triton.__file__).parent
_FOLDERS = ("_C", "backends", "compiler", "language", "runtime")
"""The folders that Triton reads for it, and what lies next to them."""
_FILENAME = "triton.key"
_compute = triton_cache.triton_key


def install() -> None:
    """Make Triton take the hash from here."""
    triton_cache.triton_key = _key


def remove() -> None:
    """Make Triton compute the hash itself again."""
    triton_cache.triton_key = _compute


@cache
def _key() -> str:
    return remembered(_ROOT, triton.__version__, _compute)


def remembered(root: Path, begins_with: str, compute: Callable[[], str]) -> str:
    """Return what ``compute`` returns, or returned when the files under ``root`` were the same.

    They are the same if nothing has happened to any of them since, as far as the file system
    knows. A file in Triton's cache that cannot be read or written is as good as none.
    """
    stamp = hashlib.sha256("\n".join(_states(root)).encode()).hexdigest()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        path = triton_cache.get_cache_manager(stamp).get_file(_FILENAME)
        text = "" if path is None else Path(path).read_text()
        if text and text.startswith(begins_with):
            return text
    name = compute()
    with contextlib.suppress(OSError):
        triton_cache.get_cache_manager(stamp).put(name, _FILENAME, binary=False)
    return name


def _states(root: Path) -> Iterator[str]:
    for folder in _FOLDERS:
        for path, folders, names in os.walk(root / folder):
            folders[:] = sorted(set(folders) - {"__pycache__"})
            for name in sorted(names):
                file = Path(path, name)
                state = file.stat()
                yield f"{file} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"
