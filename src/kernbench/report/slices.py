"""Slices of one track of a timeline: disjoint, and at most a given number."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Disjoint slices by start, each made of one or more of the intervals that were given."""

    start_ps: Column
    end_ps: Column
    order: Column
    """The given intervals, slice after slice, by start."""
    heads: Column
    """Where each slice begins in ``order``."""

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def first(self) -> Column:
        """The earliest interval of each slice, as an index into the given ones."""
        return self.order[self.heads]

    def sums(self, values: Column) -> Column:
        """Return, for each slice, the sum of its intervals' ``values``."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(values[self.order], self.heads)


def merged_slices(start_ps: Column, end_ps: Column, most: int) -> Slices:
    """Return at most ``most`` disjoint slices that cover the given intervals.

    Intervals that overlap become one slice; ones that only touch stay apart. If there are still
    too many, slices are joined over the shortest gaps.

    >>> slices = merged_slices(np.array([0, 5, 7]), np.array([5, 9, 8]), most=10)
    >>> slices.start_ps.tolist(), slices.end_ps.tolist()
    ([0, 5], [5, 9])
    """
    order = np.lexsort((end_ps, start_ps))
    if not len(order):
        return Slices(start_ps, end_ps, order, order)
    begin = start_ps[order]
    reach = np.maximum.accumulate(end_ps[order])
    gaps = begin[1:] - reach[:-1]
    splits = np.flatnonzero(gaps >= 0)
    if len(splits) >= most:
        longest = np.argsort(-gaps[splits], kind="stable")[: most - 1]
        splits = np.sort(splits[longest])
    heads = np.concatenate([[0], splits + 1])
    tails = np.concatenate([splits, [len(order) - 1]])
    return Slices(begin[heads], reach[tails], order, heads)
