"""Causes of a rank's idle time, in which none of its kernels and collectives runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernbench.op_log import Column, OpLog, build_spans, exposed_ps


@dataclass(frozen=True, slots=True)
class IdleParts:
    """Idle time by cause, summed over all ranks; the rest of it is waiting and plain host code."""

    copies_ps: int
    """Copies and fills run: weights and inputs arrive from the host, results return to it."""
    launches_ps: int
    """The host launches, and the device has nothing to do: the program is launch-bound."""


def idle_parts(log: OpLog) -> IdleParts:
    """Return why the ranks of a run were idle."""
    spans = build_spans(log)
    is_copy = np.array([each.kind in ("copy", "fill") for each in spans.templates], dtype=bool)
    launches = [span for span in log.host_spans if span.kind == "launch"]
    launch_rank = _column([span.rank for span in launches])
    launch_start = _column([span.start_ps for span in launches])
    launch_end = _column([span.end_ps for span in launches])
    copies_ps = launches_ps = 0
    for device, host in _by_rank(spans.rank, launch_rank):
        start_ps, end_ps = spans.start_ps[device], spans.end_ps[device]
        copies = is_copy[spans.template[device]]
        copies_ps += exposed_ps(
            start_ps[copies], end_ps[copies], start_ps[~copies], end_ps[~copies]
        )
        launches_ps += exposed_ps(launch_start[host], launch_end[host], start_ps, end_ps)
    return IdleParts(copies_ps, launches_ps)


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
