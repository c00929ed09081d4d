"""What of a launch decides its schedule, as a short key.

A kernel that decides by data is executed at each launch, and what it does is scheduled then. Most
such launches of a program differ in numbers that no time follows from: a step of a server has other
lengths than the one before, and stores them at the next place of a list. The key holds all that a
schedule is made of, and of what is stored only

- that it is known, where it is;
- the place of a store within a burst, and which programs store to the same place, not where that
  is: loads are compared with each other by their addresses, stores are not.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    Dims,
    DmaWrite,
    IndexTile,
    KernelTrace,
    MaskTile,
    Predicate,
    Separable,
    SourceLine,
    Splat,
    Tile,
    distinct,
    field_names,
)
from kernbench.dtypes import Array, DType

_KNOWN = Splat | IndexTile | MaskTile
_TEXTS: dict[type, Callable[[Any], str]] = {
    DType: attrgetter("name"),
    SourceLine: lambda line: f"{line.file}:{line.line}:{line.column}",
    Tile: lambda tile: f"tile {tile.slot} {tile.shape} {tile.dtype.name}",
}
_STORED = ("value", "compare")
_NO_PART = "again"
"""A trace's way to evaluate itself again, which is no part of what it does."""


def schedule_key(trace: KernelTrace, burst_bytes: int) -> bytes:
    """Return a key that only traces with equal schedules have, under equal conditions.

    ``burst_bytes`` are those of the device's HBM.
    """
    digest = blake2b()
    texts: list[str] = []
    _tell(trace, burst_bytes, texts.append, digest.update)
    digest.update("\n".join(texts).encode())
    return digest.digest()


def _tell(
    value: Any, burst_bytes: int, say: Callable[[str], None], put: Callable[[Any], None]
) -> None:
    """Say all of a value in texts, but arrays, whose bytes are ``put``."""
    kind = type(value)
    if kind is tuple:
        say(f"{len(value)}:")
        for item in value:
            _tell(item, burst_bytes, say, put)
    elif kind in _TEXTS:
        say(_TEXTS[kind](value))
    elif kind is Separable or kind is Predicate:
        say(f"{kind.__name__} {value.shape} {getattr(value, 'const', '')}")
        for dims, array in value.terms.items():
            _tell_term(dims, np.asarray(array), say, put)
    elif kind is np.ndarray:
        _tell_term((), value, say, put)
    elif not (names := field_names(value)):
        say(repr(value))
    else:
        say(kind.__name__)
        moves_place = kind is DmaWrite and not isinstance(value.mask, Tile)
        for name in names:
            part = getattr(value, name) if name != _NO_PART else None
            if moves_place and name == "dest":
                _tell_place(value.dest, burst_bytes, say, put)
            elif kind in (DmaWrite, Atomic) and name in _STORED and isinstance(part, _KNOWN):
                say("known")
            else:
                _tell(part, burst_bytes, say, put)


def _tell_term(
    dims: Dims, array: Array, say: Callable[[str], None], put: Callable[[Any], None]
) -> None:
    say(f"{dims} {array.shape} {array.dtype.str}")
    put(array.tobytes())


def _tell_place(
    access: Access, burst_bytes: int, say: Callable[[str], None], put: Callable[[Any], None]
) -> None:
    """Say where a store goes, less what no schedule depends on."""
    offset = access.offset
    by_program = [dims for dims in offset.terms if PROGRAM in dims]
    if access.gather is not None or any(dims != (PROGRAM,) for dims in by_program):
        _tell(access.offset, burst_bytes, say, put)
    else:
        for dims, array in offset.terms.items():
            if dims == (PROGRAM,):
                bursts = (array + offset.const % burst_bytes) // burst_bytes
                array = np.stack([distinct(array)[2], distinct(bursts)[2]])
            _tell_term(dims, np.asarray(array), say, put)
    _tell((access.param, access.shape, access.dtype, access.gather), burst_bytes, say, put)
