"""The steps of a run, found from what its program names and calls (ADR-0260)."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise
from statistics import median_low
from typing import NamedTuple

import numpy as np

from kernbench.op_log.columns import command_columns, host_columns
from kernbench.op_log.log import Column, OpLog, Site

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

    def holding(self, ranks: Column, times_ps: Column) -> Column:
        """Return the positions of those of some times, each of a rank, that lie in the window."""
        order = np.argsort(ranks, kind="stable")
        in_order = ranks[order]
        held = np.zeros(len(ranks), dtype=np.bool_)
        for rank in self._by_rank:
            first, end = np.searchsorted(in_order, (rank, rank + 1))
            mine = order[first:end]
            held[mine] = self.until(rank, times_ps[mine] + 1) > self.until(rank, times_ps[mine])
        return np.flatnonzero(held)

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


_OF_OPTIMIZERS = "Optimizer.step#"
"""How PyTorch's optimizers name the range of a step."""
_WORDS = ("profilerstep", "step", "iter", "batch")
"""What ranges of steps are called, the surest word first."""
_NUMBER = re.compile(r"#?\d+")


class _Named(NamedTuple):
    """When a host came into a step or a range, and when it left it."""

    name: str
    start_ps: int
    end_ps: int
    edge: str = ""
    """The name of the range at whose edge it ends."""


_How = Callable[["OpLog"], Mapping[int, Sequence[_Named]]]


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run, on all ranks."""

    name: str
    window: Window


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The steps of a run: at least two, in order."""

    found_by: str
    """What they were found by, in words."""
    steps: Sequence[RunStep]
    startup: Window
    """What is before the first one."""
    log: OpLog
    how: _How
    """Finds the host's time of the steps in a log, by rank."""
    edges: frozenset[str]
    """The names of the ranges at whose edges steps begin and end; empty where a line says it."""

    @property
    def steady(self) -> int:
        """The number of the step that stands for others: of those behind the first, the median."""
        lengths = [step.window.mean_ps for step in self.steps[1:]]
        return 1 + lengths.index(median_low(lengths))

    def again(self, log: OpLog) -> RunSteps | None:
        """Return the steps of another run of the same program, found in the same way."""
        return _steps_of(log, self.found_by, self.how, self)


def named_windows(log: OpLog, name: str, like: OpLog | None = None) -> list[Window]:
    """Return the windows of all ranges of a name, the k-th ones of all ranks together.

    ``like`` is another log of the program: ranges hold the commands that they hold there.
    """
    return [
        Window(window)
        for window in _windows(log, partial(_by_rank, is_wanted=lambda item: item == name), like)
    ]


def range_names(log: OpLog) -> list[str]:
    """Return the names of the ranges of a run, in order."""
    return list(dict.fromkeys(item.name for item in log.host_ranges if item.end_ps > item.start_ps))


def find_steps(log: OpLog, site: Site | None = None) -> RunSteps | None:
    """Return the steps of a run; None if it has none, or one only.

    Steps are ranges that are called so (``record_function("step 3")``, ``ProfilerStep#3``), else
    the time from the end of one call of ``optimizer.step`` to that of the next. With a ``site``
    they are what begins whenever a host comes to that line of the program.
    """
    if site is not None:
        said = f"{site[0].rpartition('/')[2]}:{site[1]}"
        return _steps_of(log, said, partial(_visits, site=site))
    family = _family(log)
    if family is None:
        return _steps_of(log, "calls of optimizer.step", _optimizer_steps)
    is_step = partial(_by_rank, is_wanted=lambda name: _key(name) == family)
    return _steps_of(log, f"ranges {family}", is_step)


def _steps_of(
    log: OpLog, found_by: str, how: _How, like: RunSteps | None = None
) -> RunSteps | None:
    windows = _windows(log, how, None if like is None else like.log)
    if like is not None:
        del windows[len(like.steps) :]
    # A profiler leaves a step without anything behind the last one.
    while like is None and windows and not any(map(_length_ps, windows[-1].values())):
        windows.pop()
    if len(windows) < 2:
        return None
    by_rank = how(log if like is None else like.log)
    first = by_rank[min(by_rank)]
    names = [item.name for item in first[: len(windows)]]
    if len({*names}) < len(names):
        names = [f"step {number}" for number in range(len(names))]
    before = {rank: [(0, value[0][0])] for rank, value in windows[0].items()}
    steps = [RunStep(name, Window(window)) for name, window in zip(names, windows, strict=True)]
    edges = frozenset(item.edge for item in first) - {""}
    return RunSteps(found_by, steps, Window(before), log, how, edges)


def _length_ps(intervals: Sequence[Interval]) -> int:
    return sum(end_ps - start_ps for start_ps, end_ps in intervals)


def _key(name: str) -> str:
    """Return a name without its numbers: what all steps have in common."""
    return _NUMBER.sub("#", name)


def _by_rank(log: OpLog, is_wanted: Callable[[str], bool]) -> dict[int, list[_Named]]:
    rank: dict[int, list[_Named]] = {}
    # In the order in which they ended, as is told of runs in which hosts take no time, too.
    for host_range in sorted(log.host_ranges, key=lambda item: item.rank):
        if is_wanted(host_range.name):
            named = _Named(host_range.name, host_range.start_ps, host_range.end_ps, host_range.name)
            rank.setdefault(host_range.rank, []).append(named)
    return rank


def _windows(log: OpLog, how: _How, like: OpLog | None = None) -> list[dict[int, list[Interval]]]:
    """Return the intervals of ranges, the k-th ones of all ranks together.

    Ranks that name none are taken to be where the first one is that does. With another log of the
    program, a range holds the commands that it holds there: where hosts take no time, or launch
    graphs, times do not say what was launched when. A run that is done again does not know lines of
    the program: steps that begin at one are only where those commands are.
    """
    by_rank = how(log)
    theirs = by_rank if like is None else how(like)
    if not by_rank:
        by_rank = {
            rank: [item._replace(start_ps=0, end_ps=0) for item in named]
            for rank, named in theirs.items()
        }
    if not by_rank:
        return []
    times = DeviceTimes(log)
    known = times if like is None else DeviceTimes(like)
    intervals: dict[int, list[Interval]] = {}
    for rank, named in by_rank.items():
        pairs = intervals[rank] = []
        for item, other in zip(named, theirs.get(rank, ()), strict=False):
            edges = zip(item[1:3], other[1:3], strict=True)
            start_ps, end_ps = (
                times.done_ps(rank, mine, known.counts(rank, its)) for mine, its in edges
            )
            pairs.append((start_ps, end_ps))
    running = log.running or sorted(
        {*by_rank, *(rank for instance in log.instances for rank in instance.ranks)}
    )
    first = intervals[min(by_rank)]
    count = min(map(len, intervals.values()))
    return [{rank: [intervals.get(rank, first)[at]] for rank in running} for at in range(count)]


def _family(log: OpLog) -> str | None:
    """Return how ranges are called that follow each other as steps do, without their numbers."""
    ranks = {host_range.rank for host_range in log.host_ranges}
    if not ranks:
        return None
    first = min(ranks)
    families: dict[str, list[tuple[int, int]]] = {}
    for host_range in log.host_ranges:
        if host_range.rank == first and host_range.end_ps > host_range.start_ps:
            families.setdefault(_key(host_range.name), []).append(
                (host_range.start_ps, host_range.end_ps)
            )
    triples = []
    for key, spans in families.items():
        spans.sort()
        word = next((place for place, word in enumerate(_WORDS) if word in key.lower()), None)
        is_disjoint = all(a[1] <= b[0] for a, b in pairwise(spans))
        if word is not None and is_disjoint and len(spans) > 1 and "Optimizer." not in key:
            triples.append((word, -sum(end - start for start, end in spans), key))
    return min(triples)[-1] if triples else None


def _optimizer_steps(log: OpLog) -> dict[int, list[_Named]]:
    """Return the steps between ends of calls of ``optimizer.step``, of the one that ends last."""
    calls = [item for item in log.host_ranges if item.name.startswith(_OF_OPTIMIZERS)]
    if not calls:
        return {}
    name = max(calls, key=lambda host_range: host_range.end_ps).name
    ends: dict[int, list[int]] = {}
    for call in calls:
        if call.name == name:
            ends.setdefault(call.rank, []).append(call.end_ps)
    optimizer_steps = {}
    for rank, times in ends.items():
        edges = [_loop_begin(log, rank, min(times)), *sorted(times)]
        optimizer_steps[rank] = [
            _Named(f"step {k}", *edge, edge=name) for k, edge in enumerate(pairwise(edges))
        ]
    return optimizer_steps


def _loop_begin(log: OpLog, rank: int, first_end_ps: int) -> int:
    """Return when the loop around the first step began: when the host first was where it goes on.

    That is at the first line after the step at which it was before, too; 0 where there is none, or
    the run has no record of the program's lines.
    """
    visits = _lines_of_host(log, rank)
    first: dict[Site, int] = {}
    for site, start_ps in visits:
        if site[1] and start_ps < first_end_ps:
            first.setdefault(site, start_ps)
    after = (first[site] for site, at_ps in visits if at_ps >= first_end_ps and site in first)
    return next(after, 0)


def _lines_of_host(log: OpLog, rank: int) -> list[tuple[Site, int]]:
    """Return at which lines of the program a host was, and from when on."""
    lines = log.program_lines
    if lines is None:
        return []
    spans = zip(log.host_spans, lines.of_spans, strict=False)
    return [(lines.sites[number], span.start_ps) for span, number in spans if span.rank == rank]


def _visits(log: OpLog, site: Site) -> dict[int, list[_Named]]:
    values: dict[int, list[_Named]] = {}
    for rank in sorted({span.rank for span in log.host_spans}):
        came = [
            next(visits)[1]
            for is_there, visits in groupby(
                _lines_of_host(log, rank),
                lambda pair: pair[0][1] == site[1] and _is_in(pair[0], site[0]),
            )
            if is_there
        ]
        last = max((span.end_ps for span in log.host_spans if span.rank == rank), default=0)
        if came:
            edges = pairwise([*came, last])
            values[rank] = [_Named(f"step {k}", *edge) for k, edge in enumerate(edges)]
    return values


def _is_in(site: Site, file: str) -> bool:
    return f"/{site[0]}".endswith(f"/{file}")


def line_visits(log: OpLog, file: str) -> dict[int, int]:
    """Return how often the host of the first rank came to each line of a file of the program."""
    rank = min((span.rank for span in log.host_spans), default=0)
    visits = (site for site, _ in groupby(site for site, _ in _lines_of_host(log, rank)))
    return Counter(line for name, line in visits if _is_in((name, line), file) and line)


def all_steps(steps: Iterable[RunStep]) -> Window:
    """Return the window of some steps together."""
    return joined([step.window for step in steps])
