"""Triton's cache on disk, in which a damaged entry counts as missing (ADR-0110 D7).

Triton takes what it finds: of a file that was cut or changed it raises whatever reading it raises,
in every process, or launches another kernel. So a digest of every artefact is kept next to them.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from triton import knobs
from triton.runtime.cache import FileCacheManager

from kernbench.logs import logger

_LOG = logger("compile")
_PREFIX = "kernbench."
_SUFFIX = ".digests"
_NOTHING = object()
# A memo, not state: what is not writable stays so for the process.
_UNWRITABLE: dict[str, str] = {}


def install() -> None:
    """Make Triton keep what it compiles here, unless the user has set a cache manager."""
    _LOG.info("kernels are kept in %s", knobs.cache.dir)
    if knobs.cache.manager_class is None:
        knobs.cache.manager_class = SoundCacheManager


def remove() -> None:
    """Restore the cache that Triton had."""
    if vars(knobs.cache).get("manager_class", _NOTHING) is SoundCacheManager:
        del knobs.cache.manager_class


def cache_remarks() -> list[str]:
    """Return the warning about a cache that cannot be written."""
    reason = _UNWRITABLE.get(knobs.cache.dir)
    if reason is None:
        return []
    return [
        f"Triton's cache {knobs.cache.dir} cannot be written ({reason}): kernels are compiled anew "
        "in every process; set TRITON_CACHE_DIR to a folder of yours"
    ]


class SoundCacheManager(FileCacheManager):  # type: ignore[misc]  # no types there
    """The folder of one kernel; in a folder of this process where the cache cannot be written."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        try:
            super().__init__(key, override=override, dump=dump)
        except OSError as error:
            self.key = key
            self._go_elsewhere(error)

    def _go_elsewhere(self, error: OSError) -> None:
        _UNWRITABLE.setdefault(knobs.cache.dir, error.strerror or str(error))
        self.cache_dir = os.fspath(_elsewhere() / self.key)
        self.lock_path = os.fspath(_elsewhere() / self.key / "lock")
        Path(self.cache_dir).mkdir(exist_ok=True)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        try:
            return self._put(data, filename)
        except OSError as error:
            if Path(self.cache_dir).is_relative_to(_elsewhere()):
                raise
            self._go_elsewhere(error)
            return self._put(data, filename)

    def _put(self, data: Any, filename: str) -> str:
        """Keep a file, which nobody sees in part. Triton makes a folder for each meanwhile."""
        path = Path(self.cache_dir, filename)
        beside = path.with_name(f"{filename}.{uuid4().hex}")
        beside.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        beside.replace(path)
        return str(path)

    def put_group(self, filename: str, group: Mapping[str, str]) -> Any:
        self.put(json.dumps(_digests(group)), f"{_PREFIX}{filename}{_SUFFIX}", binary=False)
        return super().put_group(filename, group)

    def get_group(self, filename: str) -> dict[str, str] | None:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            group: dict[str, str] | None = super().get_group(filename)
            path = self.get_file(f"{_PREFIX}{filename}{_SUFFIX}")
            if group and path and json.loads(Path(path).read_bytes()) == _digests(group):
                return group
        return None


def _digests(group: Mapping[str, str]) -> dict[str, str]:
    return {
        name: hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
        for name, path in group.items()
    }


@cache
def _elsewhere() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kernbench-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
