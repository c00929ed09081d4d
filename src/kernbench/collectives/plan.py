"""What an algorithm is asked for, and the pieces that its plan is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernbench.collectives.schedule import Bounds, Index, Step

Plan = tuple[Bounds, tuple[Step, ...]]
"""Where the work buffer is cut, and the steps."""


@dataclass(frozen=True, slots=True)
class Request:
    """A collective over a group, before an algorithm has been chosen."""

    num_ranks: int
    num_elements: int
    """Length of the work buffer."""
    itemsize: int
    root: int
    """The sender of a broadcast or send_recv; no other op reads it."""


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
