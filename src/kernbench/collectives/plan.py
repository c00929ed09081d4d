"""What an algorithm is asked for, and what its plan is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernbench.collectives.schedule import Bounds, Counts, Index, Step

Plan = tuple[Bounds, tuple[Step, ...]]
"""Bounds of the chunks in the work buffer, and the steps."""


@dataclass(frozen=True, slots=True)
class Request:
    """A collective over a group, before an algorithm has been chosen."""

    num_ranks: int
    num_elements: int
    """Length of the message; of one rank's input for all_to_all."""
    itemsize: int
    root: int = 0
    """Who sends (broadcast, scatter, send_recv) or gets the result (reduce, gather)."""
    counts: Counts = ()
    """all_to_all of uneven parts: elements from rank s to rank d at ``s * n + d``; else empty."""
    ranks_per_node: int = 0
    """Hierarchical algorithms: number of consecutive ranks that share a node."""

    @property
    def size_bytes(self) -> int:
        return self.num_elements * self.itemsize


def even_bounds(num_elements: int, num_chunks: int) -> Bounds:
    """Return the bounds of chunks whose sizes differ by at most one, larger ones first.

    >>> even_bounds(7, 3).tolist()
    [0, 3, 5, 7]
    """
    size, larger = divmod(num_elements, num_chunks)
    position = np.arange(num_chunks + 1, dtype=np.int64)
    bounds: Bounds = position * size + np.minimum(position, larger)
    bounds.setflags(write=False)
    return bounds


def shared_index(values: npt.ArrayLike) -> Index:
    """Return a read-only index array, for steps to share."""
    array = np.array(values, dtype=np.int32)
    array.setflags(write=False)
    return array


def in_one_round(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps as one round: none of them waits for another one."""
    return tuple(replace(step, concurrent=number > 0) for number, step in enumerate(steps))
