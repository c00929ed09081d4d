"""How long a record takes: on the judge's own schedule, behind work that keeps the device busy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from kernbench.judging.evidence import descriptions
from kernbench.judging.executing import Executor
from kernbench.judging.record import Record
from kernbench.judging.verdict import TimedKernel
from kernbench.op_log import Instance, Limit, covered_ps
from kernbench.report import HOST, kind_of, range_of
from kernbench.torch_bridge import unseen

if TYPE_CHECKING:
    from kernbench.runtime_api import RuntimeContext

_FLUSHED_BYTES = 256 << 20
"""What is written before, as Triton's ``do_bench`` does: the cache is cold, the host is ahead."""


@dataclass
class TimedRecord:
    """One record's time."""

    time_ns: float
    low_ns: float | None
    high_ns: float | None
    kernels: list[TimedKernel]
    unwritten: str
    """Which part of its results nothing writes; empty if none."""


def time_record(context: RuntimeContext, record: Record, rank: int) -> TimedRecord:
    """Return how long a rank's record takes on the machine of a run, which has no data.

    Raises:
        KernbenchError: It cannot be executed without data.
    """
    executor = Executor(record)
    flushed = torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
    run = unseen(executor.run)
    # Of a first call the host takes longer.
    run()
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
        torch.cuda.synchronize()
    log = context.op_log
    num_before = len(log.instances)
    flushed.zero_()
    # The host takes time for operations and launches, none for Python: none is in a record.
    run()
    torch.cuda.synchronize()
    flush, *ours = [each for each in log.instances[num_before:] if rank in each.ranks]
    ours = [each for each in ours if _ends_ps(each, rank) > _ends_ps(flush, rank)]
    by_name: dict[str, list[Instance]] = defaultdict(list)
    kinds: dict[str, float] = defaultdict(float)
    for each in ours:
        by_name[each.template.name].append(each)
        kinds[kind_of(each.template)] += _length_ps(each)
    starts = np.array([each.starts_ps[each.ranks.index(rank)] for each in ours], np.int64)
    ends = np.array([_ends_ps(each, rank) for each in ours], np.int64)
    busy_ps = covered_ps(starts, ends)
    time_ps = int(ends.max()) - _ends_ps(flush, rank) if ours else 0
    total_ps = sum(kinds.values()) or 1
    kinds = {kind: ps * busy_ps / total_ps for kind, ps in kinds.items()}
    kinds[HOST] = max(time_ps - busy_ps, 0)
    found = range_of(time_ps / 1000, kinds, context.machine.spec.name)
    own = {each["name"] for each in record.kernels}
    kernels = [
        TimedKernel(
            name=name,
            launches=len(uses),
            time_ns=sum(map(_length_ps, uses)) / 1000,
            share=round(sum(map(_length_ps, uses)) / total_ps, 4),
            bound_by=_bound_by(uses),
            is_own=name in own,
        )
        for name, uses in by_name.items()
    ]
    return TimedRecord(
        time_ps / 1000,
        found["low_ns"] if found else None,
        found["high_ns"] if found else None,
        sorted(kernels, key=lambda each: -each.time_ns),
        executor.unwritten(),
    )


def _ends_ps(each: Instance, rank: int) -> int:
    return each.ends_ps[each.ranks.index(rank)]


def _length_ps(each: Instance) -> int:
    return each.ends_ps[0] - each.starts_ps[0]


def _bound_by(uses: list[Instance]) -> str:
    totals: dict[Limit, int] = defaultdict(int)
    for each in uses:
        for limit, time_ps in each.template.limits_ps.items():
            totals[limit] += time_ps
    return str(max(totals, key=lambda limit: totals[limit])) if totals else ""


def floor_ns(context: RuntimeContext, record: Record) -> float:
    """Return how long the bytes of a record's inputs and results take at the memory's bandwidth.

    Results may stay in the cache, as far as they fit.
    """
    sip = context.machine.sip_at(0)
    read, made = (
        sum(record.storages[number]["bytes"] for number in {each["of"] for each in given})
        for given in (record.inputs, list(descriptions(record.results)))
    )
    cache_bytes = sip.cache.capacity_mib * 2**20 if sip.cache is not None else 0
    return float(read + max(made - cache_bytes, 0)) / float(sip.hbm_gbps)
