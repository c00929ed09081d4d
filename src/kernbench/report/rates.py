"""Rates over time, of bytes that move in intervals."""

from __future__ import annotations

import numpy as np

from kernbench.op_log import Column

MOST_COUNTER_POINTS = 2_000


def rate_steps(start_ps: Column, end_ps: Column, size_bytes: Column) -> tuple[Column, Column]:
    """Return the times at which the sum of the intervals' rates changes, and its GB/s.

    Where there would be too many changes, means over equal parts of the time.
    """
    lasts = end_ps > start_ps
    start_ps, end_ps, size_bytes = start_ps[lasts], end_ps[lasts], size_bytes[lasts]
    if not len(start_ps):
        return start_ps, size_bytes
    rates = size_bytes * 1000 / (end_ps - start_ps)
    times, where = np.unique(np.concatenate([start_ps, end_ps]), return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, where, np.concatenate([rates, -rates]))
    steps = np.cumsum(change)
    if len(times) > MOST_COUNTER_POINTS:
        moved = np.concatenate([[0.0], np.cumsum(steps[:-1] * np.diff(times))])
        edges = np.linspace(times[0], times[-1], MOST_COUNTER_POINTS).astype(np.int64)
        steps = np.append(np.diff(np.interp(edges, times, moved)) / np.diff(edges), 0.0)
        times = edges
    # Sums of floats leave crumbs where nothing runs.
    return times, np.maximum(np.round(steps, 3), 0.0)
