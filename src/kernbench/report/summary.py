"""What a run cost, in one JSON object: per rank, per kernel, per collective (ADR-0010)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Annotated, NotRequired, TypedDict

import numpy as np

from kernbench.hardware import Machine
from kernbench.op_log import (
    Column,
    EnergyReport,
    Limit,
    OpLog,
    Spans,
    Template,
    Window,
    build_spans,
    covered_ps,
    energy_of,
    exposed_ps,
    host_columns,
)
from kernbench.report.accuracy import FamilyReport, TimeRange, accuracy_of, likenesses, range_of
from kernbench.report.columns import (
    BOUND_COLUMNS,
    in_bytes,
    of_peak,
    part_of_time,
    percent,
    rate,
    shown_as,
)
from kernbench.report.peaks import Peaks, peaks_of
from kernbench.report.steps import StepsReport, steps_of
from kernbench.report.units import format_ns

_NS_PER_HOUR = 3600e9
Nanoseconds = int | float
"""Exact: an int where whole, else a float with up to three decimals."""


class RankReport(TypedDict):
    """One rank, from 0 to its last activity; compute, exposed and idle add up to that time."""

    rank: int
    time_ns: Annotated[Nanoseconds, shown_as("time_ns", "time", format_ns)]
    compute_ns: Annotated[Nanoseconds, part_of_time("compute_ns", "compute")]
    """Time in which at least one kernel of the rank runs, and does not just talk to peers."""
    comm_exposed_ns: Annotated[
        Nanoseconds, part_of_time("comm_exposed_ns", "exposed comm", narrow_title="comm")
    ]
    """Time in which the rank is in a collective (waiting for others included) and no kernel runs,
    or in which its kernel only moves bytes between SIPs or waits for a signal."""
    idle_ns: Annotated[Nanoseconds, part_of_time("idle_ns", "idle")]
    """The rest: the host launches, copies or waits for a launch."""
    hbm_bytes: Annotated[int, shown_as("hbm_bytes", "HBM", in_bytes)]
    flops: Annotated[int, of_peak("of peak", narrow_title="peak")]


class KernelReport(TypedDict):
    """All launches of a kernel name, on all ranks."""

    name: Annotated[str, shown_as("name", "kernel", is_name=True)]
    launches: Annotated[int, shown_as("launches", "launches", is_summed=True)]
    time_ns: Annotated[Nanoseconds, shown_as("time_ns", "time", format_ns, is_summed=True)]
    """Sum over launches."""
    flops: Annotated[int, rate("flops", "FLOP/s", "FLOP/s")]
    bytes: Annotated[int, rate("bytes", "HBM B/s", "B/s")]
    utilization: Annotated[float, shown_as("utilization", "of peak", percent)]
    """Least time at the SIP's peak rates (compute or HBM, the larger) over the time it took."""
    bound_by: Annotated[str, shown_as("bound_by", "bound by", least_width=BOUND_COLUMNS)]
    """What holds its launches up longest, summed over them (``op_log.Limit``); empty: unknown."""


class CollectiveReport(TypedDict):
    """All collectives of one op and algorithm."""

    op: Annotated[str, shown_as("op", "collective", is_name=True)]
    algorithm: Annotated[str, shown_as("algorithm", "algorithm", is_name=True)]
    count: Annotated[int, shown_as("count", "count")]
    bytes: Annotated[int, shown_as("bytes", "bytes", in_bytes)]
    """Sum of message sizes, as nccl-tests counts them."""
    time_ns: Annotated[
        Nanoseconds, shown_as("time_ns", "time", format_ns), rate("bytes", "algbw", "B/s")
    ]
    """Sum of the times from the last rank's arrival to the last rank's end."""


class Report(TypedDict):
    """What ``torch.report()`` returns and ``--json`` prints."""

    machine: str
    ranks: int
    time_ns: Nanoseconds
    wall_s: float
    per_rank: list[RankReport]
    kernels: list[KernelReport]
    collectives: list[CollectiveReport]
    accuracy: NotRequired[list[FamilyReport]]
    """Left out for a machine of which nothing was measured."""
    range: NotRequired[TimeRange]
    steps: NotRequired[StepsReport]
    """Left out for a program that names no steps and calls no optimizer."""
    energy: NotRequired[EnergyReport]
    """Left out for a machine that says nothing of energy."""
    cost_usd: NotRequired[float]
    """The cost of all devices for the time of the run; left out where nothing says what one
    costs."""


def build_report(
    log: OpLog, machine: Machine, *, ranks: int, wall_s: float, time_ps: int | None = None
) -> Report:
    """Return the report of a run.

    Args:
        log: What the run did.
        machine: The machine that it ran on; gives the peaks behind ``utilization``.
        ranks: World size; every rank has an entry, active or not, unless others stand for it.
        wall_s: Seconds of real time that the run took.
        time_ps: Simulated time of the run; the end of the log when None.
    """
    spans = build_spans(log)
    peaks = peaks_of(machine)
    times_ps = _times_ps(spans)
    report: Report = {
        "machine": machine.name,
        "ranks": ranks,
        "time_ns": to_ns(log.end_ps if time_ps is None else time_ps),
        "wall_s": round(wall_s, 6),
        "per_rank": _per_rank(log, spans, ranks),
        "kernels": _kernels(spans, times_ps, peaks),
        "collectives": _collectives(spans),
    }
    families, kinds = accuracy_of(
        log, machine, report["per_rank"], zip(spans.templates, times_ps, strict=True)
    )
    if families:
        report["accuracy"] = families
    time_range = range_of(report["time_ns"], kinds, likenesses(machine))
    if time_range is not None:
        report["range"] = time_range
    steps = steps_of(log, machine, ranks, peaks)
    if steps is not None:
        report["steps"] = steps
    energy = energy_of(log, machine, ranks, spans)
    if energy is not None:
        report["energy"] = energy
    price = machine.spec.usd_per_device_hour
    if price is not None:
        report["cost_usd"] = cost_usd(float(price), ranks, report["time_ns"])
    return report


def kernels_within(spans: Spans, machine: Machine, window: Window) -> list[KernelReport]:
    """Return the kernels of those launches of a run that begin in a part of it, the longest first.

    Args:
        spans: What the run did.
        machine: The machine that it ran on.
        window: The part.
    """
    inside = np.zeros(len(spans), dtype=bool)
    for rank in window.ranks:
        mine = spans.rank == rank
        starts_ps = spans.start_ps[mine]
        inside[mine] = window.until(rank, starts_ps + 1) > window.until(rank, starts_ps)
    names = [column.name for column in fields(spans) if column.name != "templates"]
    chosen = replace(spans, **{name: getattr(spans, name)[inside] for name in names})
    return _kernels(chosen, _times_ps(chosen), peaks_of(machine))


def cost_usd(usd_per_device_hour: float, devices: int, time_ns: float) -> float:
    """Return what devices cost for a time.

    >>> cost_usd(3.0, 8, 3600e9)
    24.0
    """
    return usd_per_device_hour * devices * time_ns / _NS_PER_HOUR


def to_ns(time_ps: int) -> Nanoseconds:
    """Return picoseconds as nanoseconds without loss.

    >>> to_ns(2000), to_ns(2001)
    (2, 2.001)
    """
    whole, rest = divmod(time_ps, 1000)
    return time_ps / 1000 if rest else whole


def _per_rank(log: OpLog, spans: Spans, ranks: int) -> list[RankReport]:
    ends = np.zeros(ranks, dtype=np.int64)
    np.maximum.at(ends, spans.rank, spans.end_ps)
    hosts = host_columns(log)
    np.maximum.at(ends, hosts.ranks, hosts.ends_ps)
    hbm_bytes = _sum_by_rank(
        spans, ranks, [(t.hbm_bytes, t.hbm_bytes_by_rank) for t in spans.templates]
    )
    flops = _sum_by_rank(spans, ranks, [(t.flops, ()) for t in spans.templates])
    kernel = _of_kind(spans, "kernel")
    collective = _of_kind(spans, "collective")
    comm_ps = np.array([template.comm_ps for template in spans.templates], dtype=np.int64)
    order = np.argsort(spans.rank, kind="stable")
    bounds = np.searchsorted(spans.rank[order], np.arange(ranks + 1))
    result: list[RankReport] = []
    for rank in log.ranks_of(ranks):
        mine = order[bounds[rank] : bounds[rank + 1]]
        computing, talking = mine[kernel[mine]], mine[collective[mine]]
        busy = (spans.start_ps[computing], spans.end_ps[computing])
        inside_ps = int(comm_ps[spans.template[computing]].sum())
        compute_ps = covered_ps(*busy) - inside_ps
        exposed = inside_ps + exposed_ps(spans.start_ps[talking], spans.end_ps[talking], *busy)
        time_ps = int(ends[rank])
        result.append(
            {
                "rank": rank,
                "time_ns": to_ns(time_ps),
                "compute_ns": to_ns(compute_ps),
                "comm_exposed_ns": to_ns(exposed),
                "idle_ns": to_ns(time_ps - compute_ps - exposed),
                "hbm_bytes": hbm_bytes[rank],
                "flops": flops[rank],
            }
        )
    return result


def _of_kind(spans: Spans, kind: str) -> Column:
    return np.array([template.kind == kind for template in spans.templates], dtype=bool)[
        spans.template
    ]


def _sum_by_rank(
    spans: Spans, ranks: int, totals: Iterable[tuple[int, tuple[int, ...]]]
) -> list[int]:
    result = np.zeros(ranks, dtype=np.int64)
    np.add.at(result, spans.rank, spans.shares(totals))
    return [int(number) for number in result]


def _times_ps(spans: Spans) -> list[int]:
    """Return the time of all launches of each template, together."""
    times_ps = np.zeros(len(spans.templates), dtype=np.int64)
    np.add.at(times_ps, spans.template, spans.end_ps - spans.start_ps)
    return [int(number) for number in times_ps]


def _kernels(spans: Spans, times_ps: list[int], peaks: Peaks) -> list[KernelReport]:
    num_launches = np.bincount(spans.template, minlength=len(spans.templates)).tolist()
    by_name: dict[str, list[tuple[Template, int, int]]] = {}
    for template, launches, time_ps in zip(spans.templates, num_launches, times_ps, strict=True):
        if template.kind == "kernel" and launches:
            by_name.setdefault(template.name, []).append((template, launches, time_ps))
    result = [_kernel(name, uses, peaks) for name, uses in by_name.items()]
    return sorted(result, key=lambda report: (-report["time_ns"], report["name"]))


def _kernel(name: str, uses: list[tuple[Template, int, int]], peaks: Peaks) -> KernelReport:
    time_ps = sum(time_ps for _, _, time_ps in uses)
    bound_ps = sum(peaks.bound_ps(template) * launches for template, launches, _ in uses)
    return {
        "name": name,
        "launches": sum(launches for _, launches, _ in uses),
        "time_ns": to_ns(time_ps),
        "flops": sum(template.flops * launches for template, launches, _ in uses),
        "bytes": sum(template.hbm_bytes * launches for template, launches, _ in uses),
        "utilization": round(bound_ps / time_ps, 6) if time_ps else 0.0,
        "bound_by": _bound_by(uses),
    }


def _bound_by(uses: list[tuple[Template, int, int]]) -> str:
    """Return the limit whose time, summed over all launches, is longest."""
    totals: dict[Limit, int] = {}
    for template, launches, _ in uses:
        for limit, time_ps in template.limits_ps.items():
            if limit is Limit.POWER:
                continue  # it slows down what holds the kernel up
            totals[limit] = totals.get(limit, 0) + time_ps * launches
    return max(totals, key=lambda limit: totals[limit]).value if totals else ""


def _collectives(spans: Spans) -> list[CollectiveReport]:
    numbers: dict[tuple[str, str], list[int]] = {}
    (mine,) = np.nonzero(_of_kind(spans, "collective"))
    first = np.flatnonzero(np.diff(spans.instance[mine], prepend=-1))
    last_ps = [
        np.maximum.reduceat(times_ps[mine], first) if len(mine) else times_ps[mine]
        for times_ps in (spans.start_ps, spans.end_ps)
    ]
    for number, time_ps in zip(
        spans.template[mine][first].tolist(), (last_ps[1] - last_ps[0]).tolist(), strict=True
    ):
        template = spans.templates[number]
        sums = numbers.setdefault((template.name, template.algorithm), [0, 0, 0])
        sums[0] += 1
        sums[1] += template.message_bytes
        sums[2] += time_ps
    result: list[CollectiveReport] = [
        {"op": op, "algorithm": algorithm, "count": count, "bytes": size, "time_ns": to_ns(time_ps)}
        for (op, algorithm), (count, size, time_ps) in numbers.items()
    ]
    return sorted(result, key=lambda item: (-item["time_ns"], item["op"], item["algorithm"]))
