"""Slices of one track of a timeline: disjoint, and at most a given number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.op_log import Column


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
