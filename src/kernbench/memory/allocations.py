"""What a run has allocated on its devices: each allocation, from when to when, and what for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

NEVER = -1
"""The end of an allocation that was not freed."""


class Phase(StrEnum):
    """What memory is for; where several are true, the first one of these counts."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    """Of modules: what is no parameter and still part of the model."""
    OPTIMIZER_STATE = "optimizer state"
    GRADIENTS = "gradients"
    """Of parameters."""
    ACTIVATIONS = "activations"
    """What is kept for the backward pass."""
    KV_CACHE = "KV cache"
    COMMUNICATION = "communication"
    """What collectives read or write, and nothing above is."""
    TEMPORARIES = "temporaries"
    """What was freed before the pass that allocated it had ended."""
    OTHER = "other"
    """What is not known to be anything else."""


_RANKS = {phase: number for number, phase in enumerate(Phase)}


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory of a device from when it was allocated until it was freed."""

    rank: int
    sip_id: int
    size_bytes: int
    """What the allocator gave, rounded up."""
    asked_bytes: int
    begin: int
    """The number of the event; those of a run's allocations and frees are in order."""
    begin_ps: int
    name: str
    """Of the tensor, or of the operation that made it."""
    shape: tuple[int, ...]
    dtype: str
    module: Any = ""
    """The module whose code allocated it, as anything that has a text; empty without one."""
    file: str = ""
    line: int = 0
    """Of the program; 0 where it is not known."""
    end: int = NEVER
    end_ps: int = NEVER
    phase: Phase = Phase.OTHER

    def is_for(self, phase: Phase) -> None:
        """Note that it is for a phase, unless it is known to be for one that counts before it."""
        if _RANKS[phase] < _RANKS[self.phase]:
            self.phase = phase


_FIELDS = attrgetter("begin", "end", "begin_ps", "end_ps", "size_bytes")


def steps_in_use(
    entries: Sequence[Allocation],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return what some allocations have in use after each of their events.

    That is: the numbers of the events, their times in ps, the bytes that are in use from each on.
    """
    columns = np.array([_FIELDS(each) for each in entries], np.int64).reshape(-1, 5).T
    begin, end, begin_ps, end_ps, size_bytes = columns
    freed = end != NEVER
    numbers = np.concatenate([begin, end[freed]])
    times_ps = np.concatenate([begin_ps, end_ps[freed]])
    sizes = np.concatenate([size_bytes, -size_bytes[freed]])
    order = np.argsort(numbers)
    return numbers[order], np.maximum.accumulate(times_ps[order]), np.cumsum(sizes[order])


class AllocationLog:
    """The allocations of a run, in order."""

    def __init__(self) -> None:
        self.entries: list[Allocation] = []
        self.next_event = count().__next__
        """Returns the number of the next event. Python may free memory at any moment, also while
        another event is being noted."""

    def on(self, sip_id: int) -> list[Allocation]:
        """Return the allocations on one SIP."""
        return [each for each in self.entries if each.sip_id == sip_id]

    def ended(self, allocation: Allocation, end_ps: int) -> None:
        """Note that an allocation is freed."""
        allocation.end, allocation.end_ps = self.next_event(), end_ps
