"""Where the time of each rank went: every picosecond of a run, exactly once (ADR-0153)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.resources import Resources

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.op_log import Column, HostSpan, Instance, OpLog, Site

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


def attribution(log: OpLog, machine: Machine, ranks: int) -> list[Spent]:
    """Return what the time of each rank went to, which adds up to the run's time for every rank.

    At a time at which several things run, what counts is a kernel, then a collective, then a copy,
    then what the host does.
    """
    resources = Resources(machine)
    end_ps = log.end_ps
    found: list[Spent] = []
    for rank, levels in _levels(log, ranks).items():
        sums: defaultdict[_Key, int] = defaultdict(int)
        times = _own_times(levels, end_ps)
        for item, time_ps in times:
            for key, ps in _split(item, time_ps, resources, log):
                sums[key] += ps
        last_ps = max((item.end_ps for items in levels for item in items), default=0)
        sums[ENDED, "", _NOWHERE, ""] += end_ps - last_ps
        sums[IDLE, "", _NOWHERE, ""] += last_ps - sum(time_ps for _, time_ps in times)
        found += [
            Spent(rank, resource, name, ps, site, detail)
            for (resource, name, site, detail), ps in sums.items()
            if ps
        ]
    return found


def _levels(log: OpLog, ranks: int) -> dict[int, tuple[list[_Item], ...]]:
    """Return for each rank what it did: host waits, host, copies, collectives, kernels."""
    found: dict[int, tuple[list[_Item], ...]] = {
        rank: ([], [], [], [], []) for rank in log.ranks_of(ranks)
    }
    for span, site in zip(log.host_spans, _lines_of_spans(log), strict=False):
        level = 0 if span.kind == "wait" else 1
        found[span.rank][level].append(_Item(span.start_ps, span.end_ps, span, site))
    for each in log.instances:
        kind = each.template.kind
        last_ps = max(each.starts_ps)
        for rank, start_ps, end_ps in zip(each.ranks, each.starts_ps, each.ends_ps, strict=True):
            levels = found[rank]
            if kind == "kernel":
                levels[4].append(_Item(start_ps, end_ps, each, _line_of(log, each)))
            elif kind != "collective":
                levels[2].append(_Item(start_ps, end_ps, each, _line_of(log, each)))
            else:
                begun_ps = min(last_ps, end_ps)
                levels[3].append(_Item(start_ps, begun_ps, each, is_late=True))
                levels[3].append(_Item(begun_ps, end_ps, each))
    return found


def _lines_of_spans(log: OpLog) -> Iterable[Site]:
    lines = log.program_lines
    return repeat(_NOWHERE) if lines is None else map(lines.sites.__getitem__, lines.of_spans)


def _line_of(log: OpLog, command: Instance) -> Site:
    lines = log.program_lines
    return _NOWHERE if lines is None else lines.sites[lines.of_commands.get(command.launch_id, 0)]


def _own_times(levels: Sequence[Sequence[_Item]], end_ps: int) -> list[tuple[_Item, int]]:
    """Return the items with the time in which each is what counts."""
    items = [item for level in levels for item in level if item.end_ps > item.start_ps]
    starts = np.array([item.start_ps for item in items], dtype=np.int64)
    ends = np.array([item.end_ps for item in items], dtype=np.int64)
    edges = np.unique(np.concatenate([[0, end_ps], starts, ends]))
    owner = np.full(len(edges) - 1, -1)
    bounds = zip(np.searchsorted(edges, starts), np.searchsorted(edges, ends), strict=True)
    for number, (first, last) in enumerate(bounds):
        owner[first:last] = number
    times: Column = np.zeros(len(items) + 1, dtype=np.int64)
    np.add.at(times, owner, np.diff(edges))
    return [(item, ps) for item, ps in zip(items, times.tolist(), strict=False) if ps]


def _split(
    item: _Item, time_ps: int, resources: Resources, log: OpLog
) -> Iterable[tuple[_Key, int]]:
    what = item.what
    template = getattr(what, "template", None)
    if template is None:
        kind: str = what.kind  # type: ignore[union-attr]
        name = what.label if kind in ("wait", "launch", "capture") else ""  # type: ignore[union-attr]
        return [((OF_HOST.get(kind, WAIT), name, item.site, ""), time_ps)]
    instance: Instance = what  # type: ignore[assignment]
    if template.kind == "kernel":
        own = resources.line_of(template)
        site = own if own[0] else item.site
        parts = resources.of_kernel(instance, time_ps)
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
