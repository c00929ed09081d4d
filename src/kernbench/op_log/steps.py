"""The steps of a run, found from what its program names and calls (ADR-0260)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

from kernbench.op_log.windows import DeviceTimes, Interval, Window, joined

if TYPE_CHECKING:
    from kernbench.op_log.log import OpLog, Site

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
    return [Window(window) for window in _windows(log, partial(_called, name=name), like)]


def range_names(log: OpLog) -> list[str]:
    """Return the names of the ranges of a run, in order."""
    return list(
        dict.fromkeys(
            host_range.name
            for host_range in log.host_ranges
            if host_range.end_ps > host_range.start_ps
        )
    )


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
    return _steps_of(log, f"ranges {family}", partial(_of_family, family=family))


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


def _called(log: OpLog, name: str) -> dict[int, list[_Named]]:
    return _by_rank(log, lambda item: item == name)


def _of_family(log: OpLog, family: str) -> dict[int, list[_Named]]:
    return _by_rank(log, lambda name: _key(name) == family)


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
    return [
        {rank: [intervals.get(rank, first)[place]] for rank in running} for place in range(count)
    ]


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
    calls = [
        host_range for host_range in log.host_ranges if host_range.name.startswith(_OF_OPTIMIZERS)
    ]
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
                _lines_of_host(log, rank), lambda pair: _is_at(pair[0], site)
            )
            if is_there
        ]
        last = max((span.end_ps for span in log.host_spans if span.rank == rank), default=0)
        if came:
            edges = pairwise([*came, last])
            values[rank] = [_Named(f"step {k}", *edge) for k, edge in enumerate(edges)]
    return values


def _is_at(site: Site, wanted: Site) -> bool:
    return site[1] == wanted[1] and f"/{site[0]}".endswith(f"/{wanted[0]}")


def all_steps(steps: Iterable[RunStep]) -> Window:
    """Return the window of some steps together."""
    return joined([step.window for step in steps])
