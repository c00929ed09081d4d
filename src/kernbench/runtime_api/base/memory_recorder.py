"""Notes what ranks allocate on SIPs, and where in the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from inspect import isabstract
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.clock import is_of_program
from kernbench.memory import Allocation, AllocationLog

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from kernbench.clock import Simulation
    from kernbench.memory import Buffer

_LAYERS = str(Path(__file__).resolve().parents[2] / "tp") + "/"


class MemoryRecorder:
    """Writes a run's allocations to its log."""

    def __init__(self, log: AllocationLog, simulation: Simulation, rank: Callable[[], int]) -> None:
        self._log = log
        self._simulation = simulation
        self._rank = rank
        self._sites = _Sites()

    def allocated(self, buffer: Buffer, size_bytes: int) -> None:
        """Note a new buffer, which takes up some bytes."""
        log = self._log
        layers, file, line = self._sites.find(sys._getframe(2))
        name, shape, dtype = _parts_of(buffer.label)
        buffer.allocation = made = Allocation(
            self._rank(),
            buffer.sip_id,
            size_bytes,
            buffer.size_bytes,
            log.next_event(),
            self._simulation.now_ps,
            name,
            shape,
            dtype,
            layers,
            file,
            line,
        )
        log.entries.append(made)

    def freed(self, allocation: Allocation) -> None:
        """Note that memory is free again."""
        self._log.ended(allocation, self._simulation.now_ps)


def _parts_of(label: str) -> tuple[str, tuple[int, ...], str]:
    """Return the name, the shape and the dtype in the label of a tensor.

    >>> _parts_of("fc1.weight (4, 8) float16")
    ('fc1.weight', (4, 8), 'float16')
    """
    rest, _, dtype = label.rpartition(" ")
    name, opening, shape = rest.rpartition(" (")
    return (name, _sizes(shape), dtype) if opening else (label, (), "")


@lru_cache(maxsize=4096)
def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(int(size) for size in shape.strip("()").split(",") if size)


class _Sites:
    """Says where in the program, and in which layers of ``kernbench.tp``, something happens."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[CodeType, str | None]] = {}
        """By the identity of code, whose own hash is slow: whether it is the program's (None), or
        which class of layers it is of."""

    def find(self, frame: FrameType | None) -> tuple[str, str, int]:
        """Return the layers, outermost first, and the file and the line of the program."""
        known = self._known
        layers = ""
        while frame is not None:
            code = frame.f_code
            found = known.get(id(code))
            if found is None:
                found = known[id(code)] = code, self._owner_of(frame)
            owner = found[1]
            if owner is None:
                return layers, code.co_filename, frame.f_lineno
            if owner and not layers.startswith(owner):
                layers = f"{owner}/{layers}" if layers else owner
            frame = frame.f_back
        return layers, "", 0

    def _owner_of(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if is_of_program(code.co_filename):
            return None
        if not code.co_filename.startswith(_LAYERS):
            return ""
        owner = code.co_qualname.partition(".")[0]
        kind = frame.f_globals.get(owner)
        # A base class is not the layer's own.
        return owner if isinstance(kind, type) and not isabstract(kind) else ""
