"""Where the time of each rank went: every picosecond of a run, exactly once (ADR-0153)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from kernbench.analysis.resources import Resources
from kernbench.hardware import Machine
from kernbench.op_log import HostSpan, Instance, OpLog, Site, Window

OF_HOST = {
    "launch": "host launch",
    "capture": "host launch",
    "dispatch": "host operations",
    "python": "host Python",
    "allocate": "allocator",
    "read": "host read",
    "interruption": "host interrupted",
    "restart": "restart",
    "storage": "storage",
}
"""The resource of a host's span, by its kind."""
COPY, WAIT, IDLE, ENDED = "copy", "host wait", "idle", "after its end"
LINKS, RANKS = "links", "other ranks"
_NOWHERE = ("", 0)
_Key = tuple[str, str, "Site", str]
"""The fields of :class:`Spent` but for the rank and the time."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Time of a rank that one resource had, for one kernel, collective or activity of the host."""

    rank: int
    resource: str
    name: str
    """The kernel or collective, or what the host did."""
    time_ps: int
    site: Site = ("", 0)
    """A source line: where a kernel uses the resource longest, or where a collective's last rank
    called it. Of copies, hosts and kernels without lines of their own, such as those of a library,
    the program's, in a run that knows it."""
    detail: str = ""
    """Which link is busy longest, or which rank is waited for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """Something that a rank did in an interval; of those at one time the last level counts."""

    start_ps: int
    end_ps: int
    what: Instance | HostSpan
    site: Site = _NOWHERE
    """The line of the program, of what has none of its own."""
    is_late: bool = False
    """Whether others had not come to a collective yet."""


def attribution(
    log: OpLog, machine: Machine, ranks: int, within: Window | None = None
) -> list[Spent]:
    """Return what the time of each rank went to, which adds up to the run's time for every rank.

    With a window it adds up to that of the window. At a time at which several things run, what
    counts is a kernel, then a collective, then a copy, then what the host does.
    """
    resources = Resources(machine)
    end_ps = log.end_ps
    spents: list[Spent] = []
    for rank, levels in _levels(log, ranks).items():
        sums: defaultdict[_Key, int] = defaultdict(int)
        last_ps = max((item.end_ps for items in levels for item in items), default=0)
        whole = Window({rank: [(0, end_ps)]}) if within is None else within
        until_last, until_end = whole.until(rank, np.array([last_ps, end_ps])).tolist()
        active_ps = 0
        for item, before_ps, after_ps in _own_times(levels, end_ps, rank, whole):
            active_ps += after_ps - before_ps
            for key, ps in _split(item, after_ps, resources, log):
                sums[key] += ps
            # What there was of it until the window begins.
            for key, ps in _split(item, before_ps, resources, log) if before_ps else ():
                sums[key] -= ps
        sums[ENDED, "", _NOWHERE, ""] += until_end - until_last
        sums[IDLE, "", _NOWHERE, ""] += until_last - active_ps
        spents += [
            Spent(rank, resource, name, ps, site, detail)
            for (resource, name, site, detail), ps in sums.items()
            if ps
        ]
    return spents


def _levels(log: OpLog, ranks: int) -> dict[int, tuple[list[_Item], ...]]:
    """Return for each rank what it did: host waits, host, copies, collectives, kernels."""
    values: dict[int, tuple[list[_Item], ...]] = {
        rank: ([], [], [], [], []) for rank in log.ranks_of(ranks)
    }
    for span, site in zip(log.host_spans, _lines_of_spans(log), strict=False):
        level = 0 if span.kind == "wait" else 1
        values[span.rank][level].append(_Item(span.start_ps, span.end_ps, span, site))
    for instance in log.instances:
        kind = instance.template.kind
        last_ps = max(instance.starts_ps)
        for rank, start_ps, end_ps in zip(
            instance.ranks, instance.starts_ps, instance.ends_ps, strict=True
        ):
            levels = values[rank]
            if kind == "kernel":
                levels[4].append(_Item(start_ps, end_ps, instance, _line_of(log, instance)))
            elif kind != "collective":
                levels[2].append(_Item(start_ps, end_ps, instance, _line_of(log, instance)))
            else:
                begun_ps = min(last_ps, end_ps)
                levels[3].append(_Item(start_ps, begun_ps, instance, is_late=True))
                levels[3].append(_Item(begun_ps, end_ps, instance))
    return values


def _lines_of_spans(log: OpLog) -> Iterable[Site]:
    lines = log.program_lines
    return repeat(_NOWHERE) if lines is None else map(lines.sites.__getitem__, lines.of_spans)


def _line_of(log: OpLog, command: Instance) -> Site:
    lines = log.program_lines
    return _NOWHERE if lines is None else lines.sites[lines.of_commands.get(command.launch_id, 0)]


def _own_times(
    levels: Sequence[Sequence[_Item]], end_ps: int, rank: int, within: Window
) -> Iterator[tuple[_Item, int, int]]:
    """Yield the items with the time in which each is what counts, as parts of all of that time.

    A part is in the window: from how much of an item's own time on, and until how much.
    """
    items = [item for level in levels for item in level if item.end_ps > item.start_ps]
    starts = np.array([item.start_ps for item in items], dtype=np.int64)
    ends = np.array([item.end_ps for item in items], dtype=np.int64)
    bounds_ps = np.array(within.intervals(rank), dtype=np.int64).ravel()
    edges = np.unique(np.concatenate([[0, end_ps], starts, ends, bounds_ps]))
    owner = np.full(len(edges) - 1, -1)
    bounds = zip(np.searchsorted(edges, starts), np.searchsorted(edges, ends), strict=True)
    for number, (first, last) in enumerate(bounds):
        owner[first:last] = number
    inside = np.diff(within.until(rank, edges)) > 0
    order = np.argsort(owner, kind="stable")
    order = order[owner[order] >= 0]
    mine, counts = owner[order], inside[order]
    total = np.cumsum(np.diff(edges)[order])
    is_first = np.diff(mine, prepend=-1) != 0
    heads = np.flatnonzero(is_first)
    of_others = np.concatenate([[0], total])[heads]
    after = total - np.repeat(of_others, np.diff(np.append(heads, len(mine))))
    before = np.where(is_first, 0, np.concatenate([[0], after])[:-1])
    # Neighbours of one item that are all inside are one part.
    begins = counts & (is_first | ~np.concatenate([[False], counts])[:-1])
    lasts = counts & np.append(is_first | ~counts, True)[1:]
    parts = (mine[begins].tolist(), before[begins].tolist(), after[lasts].tolist())
    for number, before_ps, after_ps in zip(*parts, strict=True):
        yield items[number], before_ps, after_ps


def _split(
    item: _Item, time_ps: int, resources: Resources, log: OpLog
) -> Iterable[tuple[_Key, int]]:
    what = item.what
    template = getattr(what, "template", None)
    if template is None:
        kind: str = what.kind  # type: ignore[union-attr]
        # Operations without a kernel are many, and each has little.
        name = "" if kind == "dispatch" else what.label  # type: ignore[union-attr]
        return [((OF_HOST.get(kind, WAIT), name, item.site, ""), time_ps)]
    instance: Instance = what  # type: ignore[assignment]
    if template.kind == "kernel":
        own = resources.line_of(template)
        site = own if own[0] else item.site
        taken_ps = instance.ends_ps[0] - instance.starts_ps[0]
        parts = resources.of_kernel(template, taken_ps, time_ps)
        return [((part.resource, template.name, site, ""), part.time_ps) for part in parts]
    if template.kind != "collective":
        return [((COPY, template.name, item.site, ""), time_ps)]
    last = instance.starts_ps.index(max(instance.starts_ps))
    sites = log.sites.get(instance.launch_id, ())
    site = sites[last] if sites else _NOWHERE
    if item.is_late:
        return [((RANKS, template.name, site, f"rank {instance.ranks[last]}"), time_ps)]
    link = resources.busiest_link(template, len(instance.ranks))
    return [((LINKS, template.name, site, link), time_ps)]
