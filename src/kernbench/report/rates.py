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
    times, steps = thinned_steps(times, steps, MOST_COUNTER_POINTS)
    # Sums of floats leave crumbs where nothing runs.
    return times, np.maximum(np.round(steps, 3), 0.0)


def highest_steps(times_ps: Column, values: Column, most: int) -> tuple[Column, Column]:
    """Return steps as they are, or about as many as ``most``: the highest in equal parts of time.

    >>> times, values = highest_steps(np.array([0, 1, 2, 3]), np.array([2, 5, 1, 0]), 2)
    >>> times.tolist(), values.tolist()
    ([1, 2], [5, 1])
    """
    if len(times_ps) <= most:
        return times_ps, values
    edges = np.linspace(times_ps[0], times_ps[-1], most + 1)[:-1]
    starts = np.unique(np.searchsorted(times_ps, edges))
    highest = np.maximum.reduceat(values, starts)
    stops = np.append(starts[1:], len(values))
    at = [
        start + int(np.argmax(values[start:stop]))
        for start, stop in zip(starts, stops, strict=True)
    ]
    return times_ps[at], highest


def thinned_steps(times_ps: Column, values: Column, most: int) -> tuple[Column, Column]:
    """Return steps as they are, or as many as ``most``: means over equal parts of the time.

    A value holds from its time to the next one; the last is that of the end.

    >>> times, values = thinned_steps(np.array([0, 1, 3, 4]), np.array([2.0, 5.0, 2.0, 0.0]), 3)
    >>> times.tolist(), values.tolist()
    ([0, 2, 4], [3.5, 3.5, 0.0])
    """
    if len(times_ps) <= most:
        return times_ps, values
    moved = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times_ps))])
    edges = np.linspace(times_ps[0], times_ps[-1], most).astype(np.int64)
    means = np.diff(np.interp(edges, times_ps, moved)) / np.diff(edges)
    return edges, np.append(means, values[-1])
