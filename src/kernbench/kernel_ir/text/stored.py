"""Modules and traces as bytes, for a cache on disk (ADR-0043).

The bytes are a pickle, because the parts of a module and of a trace know each other by identity.
Reading one makes records of this package and of ``commands`` and arrays, and nothing else: any
other class or function that the bytes name is refused. Bytes of another version of the code, of
another key or with an error in them read as nothing.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np

from kernbench import commands
from kernbench.dtypes import DType, as_dtype
from kernbench.kernel_ir.text import ir

_DIGEST_BYTES = 16
MOST_BYTES = 1 << 20
"""What takes more is not worth a file: mostly numbers that are as quickly made as read."""
_SOURCES = ("commands", "dtypes.py", "kernel_ir")
"""What decides how a text becomes a module and a module a trace."""
_IMPORTED_AT = time.time()

_RECORDS = {
    (each.__module__, each.__qualname__): each
    for home in (commands, ir)
    for each in vars(home).values()
    if isinstance(each, type) and each.__module__.startswith(home.__name__)
}
_OF_NUMPY = {
    "numpy": ("dtype", "ndarray"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.numeric": ("_frombuffer",),
}


def encode(value: Any, key: str) -> bytes | None:
    """Return a module's functions or a trace as bytes that :func:`decode` takes with this key.

    None where they could not be told from those of another version of the code, and where there
    are more than :data:`MOST_BYTES` of them.
    """
    version = source_digest()
    if version is None:
        return None
    stream = _Limited()
    try:
        _Pickler(stream, protocol=5).dump(value)
    except _TooLargeError:
        return None
    body = stream.getvalue()
    return _digest(version, key.encode()) + _digest(body) + body


def decode(data: bytes, key: str) -> Any | None:
    """Return what was encoded with this key by this version of the code, else None."""
    version = source_digest()
    if version is None or data[:_DIGEST_BYTES] != _digest(version, key.encode()):
        return None
    body = data[2 * _DIGEST_BYTES :]
    if data[_DIGEST_BYTES : 2 * _DIGEST_BYTES] != _digest(body):
        return None
    try:
        return _Unpickler(io.BytesIO(body)).load()
    except Exception:  # a pickle that was made by hand can raise anything
        return None


@functools.cache
def source_digest() -> bytes | None:
    """Return what tells this version of the code apart, or None if that is not known.

    It is not known where there are no source files, and where one has changed since this process
    read it.
    """
    root = Path(ir.__file__).parents[2]
    files = sorted(
        file
        for name in _SOURCES
        for file in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))
    )
    try:
        if not files or max(file.stat().st_mtime for file in files) > _IMPORTED_AT:
            return None
        texts = [part for file in files for part in (str(file.relative_to(root)), file.read_text())]
    except OSError:
        return None
    return _digest(np.__version__.encode(), *(text.encode() for text in texts))


def _digest(*parts: bytes) -> bytes:
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


class _TooLargeError(Exception):
    pass


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise _TooLargeError
        return super().write(data)


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> str | None:
        return obj.name if isinstance(obj, DType) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> DType:
        return as_dtype(pid)

    def find_class(self, module: str, name: str) -> Any:
        record = _RECORDS.get((module, name))
        if record is not None:
            return record
        if name in _OF_NUMPY.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no record of a module or a trace")
