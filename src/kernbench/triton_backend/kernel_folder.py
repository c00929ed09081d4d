"""What kernbench makes of a kernel, kept on disk beside Triton's own artefacts (ADR-0043)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.cache import get_cache_manager

from kernbench.kernel_ir import decode, encode


class KernelFolder:
    """The folder of one compiled kernel in Triton's cache, by the hash that Triton gave it.

    A file that is missing, damaged or of another version of kernbench reads as None, and one that
    cannot be written is not: a cache is never an error.
    """

    def __init__(self, kernel_hash: str) -> None:
        self._hash = kernel_hash

    def load(self, filename: str, key: str) -> Any | None:
        """Return what was saved in a file under this key, or None."""
        if knobs.compilation.always_compile:
            return None
        try:
            path = get_cache_manager(self._hash).get_file(filename)
            return None if path is None else decode(Path(path).read_bytes(), key)
        except OSError:
            return None

    def save(self, filename: str, key: str, value: Any) -> None:
        """Put a module's functions or a trace into a file, in place of what it held."""
        data = encode(value, key)
        if data is not None:
            with contextlib.suppress(OSError):
                get_cache_manager(self._hash).put(data, filename)
