"""Causes of a rank's idle time, in which none of its kernels and collectives runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernbench.op_log import Column, OpLog, build_spans, exposed_ps, host_columns

_PARTS = {"launch": 0, "dispatch": 0, "python": 1, "allocate": 2, "read": 3}
"""What idle time is counted as, by the kind of the host span that it is in: which of the fields of
:class:`IdleParts` that follow the copies."""


@dataclass(frozen=True, slots=True)
class IdleParts:
    """Idle time by cause, summed over all ranks; the rest of it is waiting."""

    copies_ps: int
    """Copies and fills run: weights and inputs arrive from the host, results return to it."""
    launches_ps: int
    """The host calls operations and launches, and the device has nothing to do: the program is
    launch-bound."""
    python_ps: int = 0
    """The host runs Python between operations, where the machine's host takes time for that."""
    allocations_ps: int = 0
    """The driver makes memory for the caching allocator."""
    reads_ps: int = 0
    """The host reads what the device has computed before."""

    @property
    def of_host_ps(self) -> int:
        """All of it in which the device waits for what the host does."""
        return self.launches_ps + self.python_ps + self.allocations_ps + self.reads_ps


def idle_parts(log: OpLog, since_ps: int = 0) -> IdleParts:
    """Return why the ranks of a run were idle, from a time on."""
    spans = build_spans(log)
    is_copy = np.array([item.kind in ("copy", "fill") for item in spans.templates], dtype=bool)
    hosts = host_columns(log)
    parts = np.array([_PARTS.get(kind, -1) for kind in hosts.kinds], dtype=np.int64)
    counts = (parts >= 0) & (hosts.ends_ps > since_ps)
    host_start = np.maximum(hosts.starts_ps[counts], since_ps)
    host_end, host_part = hosts.ends_ps[counts], parts[counts]
    parts_ps = [0] * (max(_PARTS.values()) + 1)
    copies_ps = 0
    for device, host in _by_rank(spans.rank, hosts.ranks[counts]):
        end_ps = np.maximum(spans.end_ps[device], since_ps)
        start_ps = np.maximum(spans.start_ps[device], since_ps)
        copies = is_copy[spans.template[device]]
        copies_ps += exposed_ps(
            start_ps[copies], end_ps[copies], start_ps[~copies], end_ps[~copies]
        )
        for part in range(len(parts_ps)):
            mine = host[host_part[host] == part]
            if mine.size:
                parts_ps[part] += exposed_ps(host_start[mine], host_end[mine], start_ps, end_ps)
    return IdleParts(copies_ps, *parts_ps)


def _by_rank(*ranks: Column) -> Iterator[tuple[Column, ...]]:
    """Yield, for every rank, its positions in each of the columns."""
    num_ranks = max(int(column.max(initial=-1)) for column in ranks) + 1
    parts = []
    for column in ranks:
        order = np.argsort(column, kind="stable")
        bounds = np.searchsorted(column[order], np.arange(1, num_ranks))
        parts.append(np.split(order, bounds))
    return zip(*parts, strict=True)
