"""Parts of a run: intervals of simulated time of each rank that add up to it (ADR-0260)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernbench.op_log.columns import command_columns, host_columns

if TYPE_CHECKING:
    from kernbench.op_log.log import Column, OpLog

Interval = tuple[int, int]
"""From a time in ps until before another one."""


class _Intervals(NamedTuple):
    """Disjoint intervals of one rank, in order."""

    starts_ps: list[int]
    ends_ps: list[int]
    before_ps: list[int]
    """How much of the window lies before each; after the last one, all of it."""

    def until(self, time_ps: int) -> int:
        place = bisect_right(self.starts_ps, time_ps) - 1
        if place < 0:
            return 0
        return self.before_ps[place] + min(time_ps, self.ends_ps[place]) - self.starts_ps[place]


class Window:
    """A part of a run: for each rank, disjoint intervals of simulated time.

    Whatever is divided by windows that do not overlap is divided exactly: each analysis takes the
    difference of what there was until an interval's end and until its start.
    """

    def __init__(self, intervals: Mapping[int, Iterable[Interval]]) -> None:
        self._by_rank = {rank: _disjoint(interval) for rank, interval in intervals.items()}

    def __contains__(self, rank: int) -> bool:
        return rank in self._by_rank

    @property
    def ranks(self) -> list[int]:
        return list(self._by_rank)

    @property
    def mean_ps(self) -> float:
        """How long it is, on average over ranks."""
        return sum(map(self.length_ps, self._by_rank)) / max(len(self._by_rank), 1)

    def length_ps(self, rank: int) -> int:
        return self._of(rank).before_ps[-1]

    def until(self, rank: int, times_ps: Column) -> Column:
        """Return how much of a rank's intervals lies before each of some times."""
        mine = self._of(rank)
        starts, ends, before = (np.array(numbers, dtype=np.int64) for numbers in mine)
        if not len(starts):
            return np.zeros_like(times_ps)
        place = np.searchsorted(starts, times_ps, side="right") - 1
        inside = np.minimum(times_ps, ends[place]) - starts[place]
        column: Column = np.where(place < 0, 0, before[place] + inside)
        return column

    def overlap_ps(self, rank: int, start_ps: int, end_ps: int) -> int:
        """Return how much of a rank's interval lies in the window."""
        mine = self._of(rank)
        return mine.until(end_ps) - mine.until(start_ps)

    def holds(self, rank: int, time_ps: int) -> bool:
        """Return whether a time of a rank lies in the window."""
        return bool(self.overlap_ps(rank, time_ps, time_ps + 1))

    def intervals(self, rank: int) -> list[Interval]:
        mine = self._of(rank)
        return list(zip(mine.starts_ps, mine.ends_ps, strict=True))

    def clipped(self, rank: int, start_ps: int, end_ps: int) -> list[Interval]:
        """Return the parts of a rank's interval that lie in the window."""
        parts = ((max(a, start_ps), min(b, end_ps)) for a, b in self.intervals(rank))
        return [(a, b) for a, b in parts if a < b]

    def outside(self, end_ps: int) -> Window:
        """Return what of a run is not in the window; the run ends at ``end_ps``."""
        intervals: dict[int, list[Interval]] = {}
        for rank in self._by_rank:
            edges = [0, *(edge for interval in self.intervals(rank) for edge in interval), end_ps]
            intervals[rank] = list(zip(edges[::2], edges[1::2], strict=True))
        return Window(intervals)

    def _of(self, rank: int) -> _Intervals:
        return self._by_rank.get(rank, _NEVER)


def overlap_ps(within: Window | None, rank: int, start_ps: int, end_ps: int) -> int:
    """Return how much of a rank's interval lies in a window, or in all of its run."""
    return end_ps - start_ps if within is None else within.overlap_ps(rank, start_ps, end_ps)


def joined(windows: Sequence[Window]) -> Window:
    """Return the window of all that is in one of some."""
    ranks = dict.fromkeys(rank for window in windows for rank in window.ranks)
    return Window({rank: [i for w in windows for i in w.intervals(rank)] for rank in ranks})


def _disjoint(intervals: Iterable[Interval]) -> _Intervals:
    numbers: list[list[int]] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if numbers and start <= numbers[-1][1]:
            numbers[-1][1] = max(numbers[-1][1], end)
        else:
            numbers.append([start, end])
    starts, ends = ([item[place] for item in numbers] for place in range(2))
    return _Intervals(starts, ends, [0, *accumulate(b - a for a, b in numbers)])


_NEVER = _disjoint(())


class DeviceTimes:
    """The time by which a rank's device has done what its host had launched until then.

    A range of a program is one of its host's time, which runs ahead of the device. What counts for
    a range is the time from when all is done that was launched before it, until all is done that
    was launched before its end: so ranges that follow each other on a host do so in the run.
    """

    def __init__(self, log: OpLog) -> None:
        # The k-th launch of a name by a rank is the k-th of its commands of that name to start.
        hosts = host_columns(log)
        launched: defaultdict[tuple[int, str], deque[int]] = defaultdict(deque)
        rows = (hosts.ranks.tolist(), hosts.kinds, hosts.labels, hosts.starts_ps.tolist())
        for rank, kind, label, start_ps in zip(*rows, strict=True):
            if kind == "launch":
                for name in log.graphs.get(label) or (label,):
                    launched[rank, name].append(start_ps)
        commands = command_columns(log)
        names = [template.name for template in commands.templates]
        entries = zip(
            commands.starts_ps.tolist(),
            commands.ranks.tolist(),
            np.repeat(np.arange(len(names)), commands.num_ranks).tolist(),
            commands.ends_ps.tolist(),
            strict=True,
        )
        self._streams: dict[int, dict[str, _InOrder]] = {}
        for start_ps, rank, number, end_ps in sorted(entries):
            waiting = launched[rank, names[number]]
            # What no launch of the log stands for was launched when it started, at the latest.
            at_ps = min(waiting.popleft(), start_ps) if waiting else start_ps
            streams = self._streams.setdefault(rank, {})
            streams.setdefault(commands.streams[number], _InOrder([], [])).add(at_ps, end_ps)

    def counts(self, rank: int, time_ps: int) -> dict[str, int]:
        """Return how many commands of each stream a rank's host had launched before a time."""
        streams = self._streams.get(rank, {})
        return {name: bisect_left(own.launched_ps, time_ps) for name, own in streams.items()}

    def done_ps(self, rank: int, time_ps: int, counts: Mapping[str, int] | None = None) -> int:
        """Return when all is done that a rank's host had launched before a time; not before it.

        With ``counts`` it is so many commands of each stream, whatever the log says of launches.
        """
        known = self.counts(rank, time_ps) if counts is None else counts
        streams = self._streams.get(rank, {})
        ends = [streams[name].done_ps(count) for name, count in known.items() if name in streams]
        return max(time_ps, *ends, 0)


class _InOrder(NamedTuple):
    """The commands of a stream, in order: when they were launched, and by when all had ended."""

    launched_ps: list[int]
    ended_ps: list[int]

    def add(self, launched_ps: int, end_ps: int) -> None:
        self.launched_ps.append(max(launched_ps, 0, *self.launched_ps[-1:]))
        self.ended_ps.append(max(end_ps, 0, *self.ended_ps[-1:]))

    def done_ps(self, count: int) -> int:
        return self.ended_ps[min(count, len(self.ended_ps)) - 1] if count else 0
