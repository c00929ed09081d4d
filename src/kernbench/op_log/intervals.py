"""Lengths of unions of intervals, in whole arrays."""

from __future__ import annotations

import numpy as np

from kernbench.op_log.log import Column


def covered_ps(starts: Column, ends: Column) -> int:
    """Return how much time lies in at least one of the intervals ``[start, end)``.

    >>> covered_ps(np.array([5, 0, 2]), np.array([7, 3, 4]))
    6
    """
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    begin = starts[order]
    reach = np.maximum.accumulate(ends[order])
    gaps = np.maximum(begin[1:] - reach[:-1], 0)
    return int(reach[-1] - begin[0] - gaps.sum())


def exposed_ps(starts: Column, ends: Column, cover_starts: Column, cover_ends: Column) -> int:
    """Return how much time lies in an interval but in no covering one."""
    both = covered_ps(np.concatenate([starts, cover_starts]), np.concatenate([ends, cover_ends]))
    return both - covered_ps(cover_starts, cover_ends)
