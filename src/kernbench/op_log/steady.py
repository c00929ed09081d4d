"""The time of a step of training, where a run has some that its program names."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from kernbench.op_log.columns import host_columns
from kernbench.op_log.log import OpLog

_STEPS = (re.compile(r"ProfilerStep#"), re.compile(r"Optimizer\.step#"))
"""Ranges that PyTorch names once a step: by its profiler, and by its optimizers."""


def steady_step_ps(log: OpLog, ranks: Sequence[int]) -> int | None:
    """Return how long a step takes a rank, on average over those behind the first, the longest.

    A step ends when the device has done what was launched up to then, which may be long after the
    host has. None where no rank of ``ranks`` has named two steps.
    """
    found = [each for rank in ranks if (each := _of_rank(log, rank)) is not None]
    return max(found, default=None)


def _of_rank(log: OpLog, rank: int) -> int | None:
    names = [each for each in log.host_ranges if each.rank == rank]
    for pattern in _STEPS:
        ends = sorted(each.end_ps for each in names if pattern.match(each.name))
        if len(ends) > 1:
            break
    else:
        return None
    host = host_columns(log)
    kinds = np.array(host.kinds)
    launches = np.sort(host.ends_ps[(host.ranks == rank) & (kinds == "launch")])
    own = [each for each in log.instances if rank in each.ranks]
    launched = [each for each in own if each.template.kind != "collective"]
    done = np.array([each.ends_ps[each.ranks.index(rank)] for each in launched], dtype=np.int64)
    counts = np.searchsorted(launches, [ends[0], ends[-1]], side="right")
    if len(launches) == len(launched) and counts[0]:
        # Streams are in order, so that the latest end of a step's launches is the step's.
        first, last = (int(done[:count].max()) for count in counts)
    else:
        first, last = ends[0], ends[-1]
    return (max(last, ends[-1]) - max(first, ends[0])) // (len(ends) - 1)
