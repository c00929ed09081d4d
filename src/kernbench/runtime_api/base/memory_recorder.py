"""Notes what ranks allocate on SIPs, and where in the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.clock import owner_of, user_site
from kernbench.memory import Allocation, AllocationLog

if TYPE_CHECKING:
    from types import FrameType

    from kernbench.clock import Simulation
    from kernbench.memory import Buffer

_LAYERS = str(Path(__file__).resolve().parents[2] / "tp") + "/"


class MemoryRecorder:
    """Writes a run's allocations to its log."""

    def __init__(self, log: AllocationLog, simulation: Simulation, rank: Callable[[], int]) -> None:
        self._log = log
        self._simulation = simulation
        self._rank = rank

    def allocated(self, buffer: Buffer, size_bytes: int) -> None:
        """Note a new buffer, which takes up some bytes."""
        log, frame = self._log, sys._getframe(2)
        site = user_site(frame)
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
            _layers_of(frame),
            site.file,
            site.line,
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


def _layers_of(frame: FrameType | None) -> str:
    """Return the classes of ``kernbench.tp`` whose code runs, outermost first."""
    found: list[str] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_LAYERS) and code.co_varnames[:1] == ("self",):
            owner = type(owner_of(frame)).__name__
            if not found or found[-1] != owner:
                found.append(owner)
        frame = frame.f_back
    return "/".join(reversed(found))
