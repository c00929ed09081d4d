"""Causes of a rank's idle time, in which none of its kernels and collectives runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernbench.op_log import Column, OpLog, build_spans, exposed_ps

_PART_OF = {
    "launch": "launches",
    "dispatch": "launches",
    "python": "python",
    "allocate": "allocations",
    "read": "reads",
}
"""What idle time is counted as, by the kind of the host span that it is in."""


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
    is_copy = np.array([each.kind in ("copy", "fill") for each in spans.templates], dtype=bool)
    host_spans = [
        span for span in log.host_spans if span.kind in _PART_OF and span.end_ps > since_ps
    ]
    host_rank = _column([span.rank for span in host_spans])
    host_start = _column([max(span.start_ps, since_ps) for span in host_spans])
    host_end = _column([span.end_ps for span in host_spans])
    host_part = np.array([_PART_OF[span.kind] for span in host_spans], dtype="U11")
    parts_ps = dict.fromkeys(_PART_OF.values(), 0)
    copies_ps = 0
    for device, host in _by_rank(spans.rank, host_rank):
        end_ps = np.maximum(spans.end_ps[device], since_ps)
        start_ps = np.maximum(spans.start_ps[device], since_ps)
        copies = is_copy[spans.template[device]]
        copies_ps += exposed_ps(
            start_ps[copies], end_ps[copies], start_ps[~copies], end_ps[~copies]
        )
        for part in parts_ps:
            mine = host[host_part[host] == part]
            if mine.size:
                parts_ps[part] += exposed_ps(host_start[mine], host_end[mine], start_ps, end_ps)
    return IdleParts(
        copies_ps,
        parts_ps["launches"],
        parts_ps["python"],
        parts_ps["allocations"],
        parts_ps["reads"],
    )


def _by_rank(*ranks: Column) -> Iterator[tuple[Column, ...]]:
    """Yield, for every rank, its positions in each of the columns."""
    num_ranks = max(int(column.max(initial=-1)) for column in ranks) + 1
    parts = []
    for column in ranks:
        order = np.argsort(column, kind="stable")
        bounds = np.searchsorted(column[order], np.arange(1, num_ranks))
        parts.append(np.split(order, bounds))
    return zip(*parts, strict=True)


def _column(values: list[int]) -> Column:
    return np.array(values, dtype=np.int64)
