"""How long a record takes: on the judge's own schedule, behind work that keeps the device busy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from kernbench.analysis import KernelLines, kernels_by_time, lines_of_kernels
from kernbench.judging.executing import Executor
from kernbench.judging.record import Record, descriptions
from kernbench.judging.tasks import TaskSize
from kernbench.judging.verdict import Gain, KernelResources, MachineTime, TimedKernel, TimedLine
from kernbench.op_log import Instance, Limit, OpLog, covered_ps
from kernbench.report import HOST, kind_of, likenesses, range_of
from kernbench.runtime_api import RuntimeContext
from kernbench.torch_bridge import unseen
from kernbench.triton_backend import KernelBinary, active_launcher

_MOST_LINES = 3
_LITTLE = 0.05
"""The share of a candidate's own kernels below which it is said that they are not what computes."""
_FLUSHED_BYTES = 256 << 20
"""What is written before, as Triton's ``do_bench`` does: the cache is cold, the host is ahead."""


@dataclass
class TimedRecord:
    """One record's time."""

    time_ns: float
    low_ns: float | None
    high_ns: float | None
    kernels: list[TimedKernel]
    gains: list[Gain]
    unwritten: str
    """Which part of its results nothing writes; empty if none."""
    kept: str
    """The same of results in memory that was there before."""
    in_inputs: dict[int, str]
    """The same of results in inputs, by the input's number."""
    unread: dict[int, str]
    """Which part of which input nothing reads, by its number."""
    overflow: str
    """Arithmetic of its kernels that does not fit, and becomes part of an address."""
    lines: set[str]
    """Lines of its own kernels that it executes."""


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
    flush, *ours = [instance for instance in log.instances[num_before:] if rank in instance.ranks]
    ours = [instance for instance in ours if _ends_ps(instance, rank) > _ends_ps(flush, rank)]
    by_name: dict[str, list[Instance]] = defaultdict(list)
    kinds: dict[str, float] = defaultdict(float)
    for instance in ours:
        by_name[instance.template.name].append(instance)
        kinds[kind_of(instance.template)] += _length_ps(instance)
    starts = np.array([item.starts_ps[item.ranks.index(rank)] for item in ours], np.int64)
    ends = np.array([_ends_ps(item, rank) for item in ours], np.int64)
    busy_ps = covered_ps(starts, ends)
    time_ps = int(ends.max()) - _ends_ps(flush, rank) if ours else 0
    total_ps = sum(kinds.values()) or 1
    kinds = {kind: ps * busy_ps / total_ps for kind, ps in kinds.items()}
    kinds[HOST] = max(time_ps - busy_ps, 0)
    time_range = range_of(time_ps / 1000, kinds, likenesses(context.machine))
    own = {binary.name: binary for binary in executor.binaries}
    lines = {line["kernel"]: line for line in lines_of_kernels(log, own)}
    kernels = [
        TimedKernel(
            name=name,
            launches=len(uses),
            time_ns=sum(map(_length_ps, uses)) / 1000,
            share=round(sum(map(_length_ps, uses)) / total_ps, 4),
            bound_by=_bound_by(uses),
            is_own=name in own,
            ceiling_ns=sum(use.template.bound_ps for use in uses) / 1000,
            resources=_resources(own[name], context) if name in own else None,
            lines=_costliest(lines[name]) if name in lines else [],
        )
        for name, uses in by_name.items()
    ]
    kernels.sort(key=lambda timed_kernel: -timed_kernel.time_ns)
    launch_ns = {
        name: sum(use.template.limits_ps.get(Limit.LAUNCH, 0) for use in uses) / 1000
        for name, uses in by_name.items()
    }
    return TimedRecord(
        time_ps / 1000,
        time_range["low_ns"] if time_range else None,
        time_range["high_ns"] if time_range else None,
        kernels,
        sorted(_gains(kernels, launch_ns, (time_ps - busy_ps) / 1000), key=lambda e: -e.gain_ns),
        executor.unwritten("made").get(0, ""),
        executor.unwritten("state").get(0, ""),
        executor.unwritten("input"),
        executor.unread(),
        executor.overflow,
        _places(lines.values()),
    )


def executed_lines(log: OpLog) -> set[str]:
    """Return the lines of kernels that a run has executed, as ``file:line``."""
    return _places(lines_of_kernels(log, kernels_by_time(log)))


def _places(kernels: Iterable[KernelLines]) -> set[str]:
    lines = [line for kernel in kernels for line in kernel["lines"] if line["line"]]
    return {f"{Path(line['file']).name}:{line['line']}" for line in lines}


def _costliest(kernel: KernelLines) -> list[TimedLine]:
    known = [line for line in kernel["lines"] if line["line"] and line["time_ns"]]
    known.sort(key=lambda line: -line["time_ns"])
    return [
        TimedLine(
            f"{Path(report['file']).name}:{report['line']}",
            round(report["time_ns"] / kernel["time_ns"], 4),
            report["engine"],
        )
        for report in known[:_MOST_LINES]
    ]


def _resources(binary: KernelBinary, context: RuntimeContext) -> KernelResources:
    launcher, sip = active_launcher(), context.machine.sip_at(0)
    warps, architecture = sip.pe.warps, launcher.cuda_architecture
    block = None
    if warps is not None and architecture is not None:
        block = binary.thread_block(architecture, warps.lanes)
    resident = launcher.most_resident(binary) // launcher.num_pes()
    return KernelResources(
        registers=block.registers if block else None,
        shared_bytes=block.shared_bytes if block else None,
        num_warps=binary.num_warps,
        resident=resident,
        occupancy=round(resident * binary.num_warps / warps.resident, 4) if warps else None,
    )


def _gains(
    kernels: list[TimedKernel], launch_ns: Mapping[str, float], gaps_ns: float
) -> Iterator[Gain]:
    """Yield what would be saved at most: kernels at their peaks, and nothing between launches."""
    for kernel in kernels:
        least_ns = kernel.ceiling_ns + launch_ns[kernel.name]
        if kernel.ceiling_ns and kernel.time_ns > least_ns:
            what = f"{kernel.name} at the peak of what it needs most, its launches as they are"
            yield Gain(what, kernel.time_ns - least_ns)
    launches = sum(timed_kernel.launches for timed_kernel in kernels)
    if launches > 1 and gaps_ns > 0:
        yield Gain(f"no gaps around {launches} launches, as in one kernel or a graph", gaps_ns)


def _ends_ps(instance: Instance, rank: int) -> int:
    return instance.ends_ps[instance.ranks.index(rank)]


def _length_ps(instance: Instance) -> int:
    return instance.ends_ps[0] - instance.starts_ps[0]


def _bound_by(uses: list[Instance]) -> str:
    totals: dict[Limit, int] = defaultdict(int)
    for use in uses:
        for limit, time_ps in use.template.limits_ps.items():
            totals[limit] += time_ps
    return str(max(totals, key=lambda limit: totals[limit])) if totals else ""


def floor_ns(context: RuntimeContext, record: Record) -> float:
    """Return how long the bytes of a record's inputs and results take at the memory's bandwidth.

    Results may stay in the cache, as far as they fit.
    """
    sip = context.machine.sip_at(0)
    read, result = (
        sum(record.storages[number]["bytes"] for number in {values["of"] for values in value})
        for value in (record.inputs, list(descriptions(record.results)))
    )
    cache_bytes = sip.cache.capacity_mib * 2**20 if sip.cache is not None else 0
    return float(read + max(result - cache_bytes, 0)) / float(sip.hbm_gbps)


def machine_time(
    machine: str,
    size: TaskSize,
    mine: TimedRecord,
    eager: TimedRecord,
    compiled: float | None,
    floor: float,
) -> MachineTime:
    """Return a record's time on a machine beside eager's; ``floor`` and ``compiled`` are in ns."""
    speedup = eager.time_ns / mine.time_ns if mine.time_ns else None
    low = high = None
    speed = "cannot say: measure"
    if speedup is not None and mine.low_ns and mine.high_ns and eager.low_ns and eager.high_ns:
        # Errors of the two are taken as independent: widths add up as squares do.
        up = math.hypot(
            math.log(eager.high_ns / eager.time_ns), math.log(mine.time_ns / mine.low_ns)
        )
        down = math.hypot(
            math.log(eager.time_ns / eager.low_ns), math.log(mine.high_ns / mine.time_ns)
        )
        low, high = speedup * math.exp(-down), speedup * math.exp(up)
        speed = "faster" if low > 1 else "slower" if high < 1 else speed
    remarks = []
    own_share = sum(kernel.share for kernel in mine.kernels if kernel.is_own)
    if own_share < _LITTLE:
        remarks.append(
            f"its own kernels take {own_share:.1%} of its time: PyTorch's operations do the rest"
        )
    if mine.low_ns is None:
        remarks.append(f"nothing like it was measured on {machine}: its interval is not known")
    if mine.time_ns < floor:
        remarks.append(
            "it takes less than its bytes do at the memory's bandwidth: it leaves out some, or the "
            "cache has them"
        )
    return MachineTime(
        machine=machine, size=size.label, time_ns=mine.time_ns, low_ns=mine.low_ns,
        high_ns=mine.high_ns, eager_ns=eager.time_ns, compiled_ns=compiled, speedup=speedup,
        speedup_low=low, speedup_high=high, speed=speed, floor_ns=floor,
        own_share=round(own_share, 4), kernels=mine.kernels, gains=mine.gains, remarks=remarks,
    )  # fmt: skip
