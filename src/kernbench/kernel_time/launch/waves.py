"""Which programs run when: programs go to PEs in order, each to the PE that can begin it first.

A PE begins a program before the one before it has ended, as far as TCM holds them; their commands
still take the PE's queues in order. Blocks of a GPU begin as ``residency`` says.

The programs that would run together if all took equally long, a *wave*, share the memory system:
their number divides its bandwidth, and a tile that several of them read comes from HBM once where
there is a cache. Programs of one class in a wave are a *segment*: it is timed once, whatever the
number of its programs, and so are all segments of one kind.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from kernbench.commands import KernelTrace, SourceLine, by_path, without_met_masks
from kernbench.dtypes import Array
from kernbench.hardware import SipSpec
from kernbench.kernel_ir import NO_CUDA
from kernbench.kernel_time.conditions import Conditions, ThreadBlock
from kernbench.kernel_time.costs.block_costs import resident_blocks
from kernbench.kernel_time.costs.command_costs import CostModel, ProgramCosts
from kernbench.kernel_time.costs.joint_reads import read_together
from kernbench.kernel_time.costs.shared_cache import SharedCache
from kernbench.kernel_time.costs.traffic import (
    GroupSplit,
    GroupTraffic,
    ProgramKind,
    varies_by_program,
)
from kernbench.kernel_time.launch.multiprocessors import BlockTimes
from kernbench.kernel_time.launch.paces import Pace, Paces, PeTiming, busy_ps, own_ps
from kernbench.kernel_time.launch.residency import place_blocks, runs_of
from kernbench.kernel_time.program.pipeline import PipelineTimes
from kernbench.kernel_time.program.timed_plan import ProgramPlan, with_late_loads, with_one_engine

_SITE_BYTES, _COLUMN_BYTES = 150, 56
"""What a site of a kind takes, and a segment."""
_SHORT_RUN = 8
"""Programs in a row that take equally long: where runs are shorter, they are placed singly."""


@dataclass(frozen=True, slots=True, eq=False)
class TimedProgram:
    """One program of a kind."""

    costs: ProgramCosts
    pipeline: PipelineTimes
    duration_ps: int
    """The pipeline's time, or longer where a shared resource cannot keep up with it."""
    interval_ps: int
    """The time from its start to when the PE begins the next program like it."""
    own_ps: int
    """What it needs of the engine of its PE that it keeps busiest."""


@dataclass(slots=True, eq=False)
class WaveSegments:
    """The segments of a group, as columns."""

    kind: Array
    wave: Array
    count: Array
    first_program: Array
    """The lowest one of each segment."""
    first_start_ps: Array
    last_start_ps: Array
    first_pe: Array


@dataclass(frozen=True, slots=True, eq=False)
class GroupWaves:
    """A program group cut in segments."""

    plan: ProgramPlan
    kinds: list[ProgramKind]
    timed: list[TimedProgram]
    """The timed program of each kind."""
    num_programs: list[int]
    """The number of programs of each kind."""
    segments: WaveSegments


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """All programs of a launch, placed in time from the first program's start on."""

    groups: list[GroupWaves]
    num_cubes: int
    """Cubes that run programs; those that follow each other run in different cubes."""
    makespan_ps: int

    def size_bytes(self) -> int:
        """Return roughly how many bytes of memory this takes."""
        tables = sum(len(group.kinds) * len(group.plan.sites) for group in self.groups)
        columns = sum(_COLUMN_BYTES * len(group.segments.kind) for group in self.groups)
        return _SITE_BYTES * tables + columns

    def tally(self) -> Iterator[tuple[ProgramCosts, int]]:
        """Yield the costs of each kind of programs, and how many programs have them."""
        for group in self.groups:
            for timed, count in zip(group.timed, group.num_programs, strict=True):
                yield timed.costs, count


_LATEST: WeakKeyDictionary[KernelTrace, tuple[SipSpec, Conditions, Waves]] = WeakKeyDictionary()


def build_waves(trace: KernelTrace, sip: SipSpec, conditions: Conditions) -> Waves:
    """Return when each program of a launch runs on the PEs of a SIP."""
    # Programs run alike after a launch that has waited.
    conditions = replace(conditions, queued=False)
    latest = _LATEST.get(trace)
    if latest is not None and latest[0] is sip and latest[1] == conditions:
        return latest[2]
    waves = _build_waves(trace, sip, conditions)
    _LATEST[trace] = sip, conditions, waves
    return waves


def _build_waves(trace: KernelTrace, sip: SipSpec, conditions: Conditions) -> Waves:
    num_cubes, pes_per_cube = pes_in_use(sip, conditions)
    num_pes = num_cubes * pes_per_cube
    timing = PeTiming(
        resident_programs(trace.tcm_bytes, trace.staged_bytes, sip, conditions.block),
        -(-trace.num_programs // num_pes),
        conditions.block is not None,
    )
    moved = _traffic(trace, sip, conditions, num_pes)
    groups = [
        _timed_group(traffic, CostModel(traffic.plan, sip, conditions), timing) for traffic in moved
    ]
    owner = partial(_owners, moved, trace.num_programs)
    makespan: int | None
    if timing.are_blocks:
        makespan = _as_blocks(groups, owner, num_pes, timing.resident, sip.dispatch_ps)
    else:
        makespan = _in_lock_step(groups)
    if makespan is None:
        makespan = _one_by_one(groups, owner(), num_pes)
    return Waves(groups, num_cubes, makespan)


def line_of_short_rows(
    trace: KernelTrace, sip: SipSpec, conditions: Conditions
) -> SourceLine | None:
    """Return the first gather by loaded indices whose time depends on how its rows lie.

    It counts where rows are so short that DRAM does not stream them one by one.
    """
    num_cubes, pes_per_cube = pes_in_use(sip, conditions)
    for traffic in _traffic(trace, sip, conditions, num_cubes * pes_per_cube):
        for site in traffic.sites_by_data:
            for kind in traffic.kinds:
                moved = kind.program_class.traffic[site.index]
                if moved is not None and any(
                    0 < touched_bytes.run_bytes < sip.cube.hbm_page_bytes
                    for touched_bytes in moved.touched
                ):
                    return site.command.line
    return None


# What does not depend on rates is found once per trace: other conditions and other machines with
# as many PEs share it.
_TRAFFIC: WeakKeyDictionary[KernelTrace, dict[Any, list[GroupTraffic]]] = WeakKeyDictionary()


def _traffic(
    trace: KernelTrace, sip: SipSpec, conditions: Conditions, num_pes: int
) -> list[GroupTraffic]:
    """Return what the groups of a trace move, on a SIP of this shape."""
    room = SharedCache(sip).room
    copies = tuple(
        (param, place.copies) for param, place in conditions.placements if place.copies > 1
    )
    blocks = None if conditions.block is None else resident_blocks(conditions.block, sip)
    gathers = not SharedCache(sip).waits_for_hbm(stores=True)
    # AMD's loads with .cg or .cs are non-temporal: no cache keeps what they bring.
    streams_miss = conditions.block is not None and conditions.block.architecture == NO_CUDA
    rules = gathers, streams_miss
    key = (num_pes, sip.cube.hbm_burst_bytes, room, copies, conditions.tables, blocks, rules)
    known = _TRAFFIC.setdefault(trace, {})
    traffic = known.get(key)
    if traffic is None:
        if any(map(varies_by_program, trace.groups)):
            plain = replace(trace, groups=tuple(map(without_met_masks, trace.groups)))
            trace = by_path(trace) if any(map(varies_by_program, plain.groups)) else plain
        width, parts = num_pes * (blocks or 1), blocks is not None
        together = read_together(trace, width, room, keeps_parts=parts)
        burst_bytes, tables = sip.cube.hbm_burst_bytes, dict(conditions.tables)
        traffic = known[key] = [
            GroupSplit(
                *(trace, group, num_pes, burst_bytes, room, dict(copies), together, tables),
                blocks,
                gathers_stores=gathers,
                streams_miss=streams_miss,
            ).traffic()
            for group in trace.groups
            if len(group.program_ids)
        ]
    return traffic


def resident_programs(
    tcm_bytes: int, staged_bytes: int, sip: SipSpec, block: ThreadBlock | None = None
) -> int:
    """Return how many programs a PE can have at the same time, at least one.

    Where part of the TCM is registers, loads that run ahead (the ``staged_bytes`` of a program's
    ``tcm_bytes``) have the other part to themselves.
    """
    if block is not None and sip.pe.warps is not None:
        return resident_blocks(block, sip)
    registers = sip.pe.register_kib * 1024
    needs = [(sip.tcm_bytes, tcm_bytes)]
    if registers:
        staging = sip.tcm_bytes - registers
        needs = [(staging, staged_bytes), (registers, tcm_bytes - staged_bytes)]
    fitting = [room // needed for room, needed in needs if needed]
    return max(1, min([sip.pe.resident_programs, *fitting]))


def pes_in_use(sip: SipSpec, conditions: Conditions) -> tuple[int, int]:
    """Return how many cubes, and PEs per cube, run programs: all, or what the policies ask for."""
    places = [place for _, place in conditions.placements]
    if not places:
        return sip.num_cubes, sip.pes_per_cube
    return max(place.num_cubes for place in places), max(place.num_pes for place in places)


def _timed_group(traffic: GroupTraffic, model: CostModel, timing: PeTiming) -> GroupWaves:
    """Return a group with every kind of its programs timed."""
    costs = [
        model.program(kind.program_class.traffic, kind.program_class.counts, kind.sharing)
        for kind in traffic.kinds
    ]
    # Many kinds differ only in what does not hold them up.
    alike: dict[Any, list[int]] = {}
    for index, cost in enumerate(costs):
        alike.setdefault((cost.times.occupancy_ps, cost.times.latency_ps), []).append(index)
    paces: dict[int, Pace] = {}
    # Warps issue in order: what a block does next waits for the result of its product.
    plan = with_one_engine(with_late_loads(traffic.plan)) if timing.are_blocks else traffic.plan
    for indices in alike.values():
        programs = [(traffic.kinds[i].program_class.trips, costs[i]) for i in indices]
        result = Paces(plan, costs[indices[0]].times, timing).of(programs)
        paces.update(zip(indices, result, strict=True))
    timed = [
        _timed(traffic.plan, program_costs, paces[index], timing)
        for index, program_costs in enumerate(costs)
    ]
    count = len(traffic.kind_of)
    segments = WaveSegments(
        traffic.kind_of,
        traffic.wave,
        traffic.sizes,
        traffic.first_program,
        *(np.full(count, -1, dtype=np.int64) for _ in range(3)),
    )
    return GroupWaves(traffic.plan, traffic.kinds, timed, traffic.num_programs(), segments)


def _timed(plan: ProgramPlan, costs: ProgramCosts, pace: Pace, timing: PeTiming) -> TimedProgram:
    own = max(own_ps(plan, costs))
    # What loads write for a block's products meanwhile is not in its pipeline.
    least = max(costs.least_ps, own if timing.are_blocks else 0)
    duration = interval = max(pace.pipeline.end_ps, least)
    if pace.interval_ps is not None:
        interval = max(pace.interval_ps, costs.least_ps, *busy_ps(plan, costs))
    return TimedProgram(costs, pace.pipeline, duration, min(interval, duration), own)


def _times(groups: list[GroupWaves]) -> tuple[Array, Array]:
    """Return the interval and the duration of every segment, group after group."""
    columns = [
        np.array(
            [
                (timed_program.interval_ps, timed_program.duration_ps)
                for timed_program in group.timed
            ]
        )[group.segments.kind]
        for group in groups
    ]
    intervals, durations = np.concatenate(columns).T if columns else np.zeros((2, 0), np.int64)
    return intervals, durations


def _place(groups: list[GroupWaves], first: Array, last: Array, pe: Array) -> None:
    """Record where the segments, group after group, begin."""
    start = 0
    for group in groups:
        stop = start + len(group.segments.kind)
        group.segments.first_start_ps = first[start:stop]
        group.segments.last_start_ps = last[start:stop]
        group.segments.first_pe = pe[start:stop]
        start = stop


def _in_lock_step(groups: list[GroupWaves]) -> int | None:
    """Place waves back to back, if all programs of each wave take equally long."""
    intervals, durations = _times(groups)
    if not len(intervals):
        return 0
    wave = np.concatenate([group.segments.wave for group in groups])
    count = np.concatenate([group.segments.count for group in groups])
    order = np.argsort(wave, kind="stable")
    is_next = np.diff(wave[order]) > 0
    if (is_next | (np.diff(intervals[order]) == 0)).all():
        first = np.concatenate(([0], np.flatnonzero(is_next) + 1))
        wave_of = np.concatenate(([0], np.cumsum(is_next)))
        ends = np.cumsum(intervals[order][first])
        starts = np.empty(len(wave), dtype=np.int64)
        starts[order] = (ends - intervals[order][first])[wave_of]
        used = np.cumsum(count[order]) - count[order]
        pes = np.empty(len(wave), dtype=np.int64)
        pes[order] = used - used[first][wave_of]
        _place(groups, starts, starts, pes)
        return int((starts + durations).max())
    return None


def _as_blocks(
    groups: list[GroupWaves], owner: Callable[[], Array], num_pes: int, room: int, dispatch_ps: int
) -> int:
    """Begin each program as soon as a multiprocessor has room for it, one after the other."""
    columns = [
        np.array(
            [
                (
                    timed_program.own_ps,
                    timed_program.duration_ps,
                    dispatch_ps,
                    *(-(-share // kind.sharing.active) for share in timed_program.costs.shares_ps),
                )
                for timed_program, kind in zip(group.timed, group.kinds, strict=True)
            ]
        )[group.segments.kind]
        for group in groups
    ]
    if not columns:
        return 0
    result = np.concatenate(columns)
    times = BlockTimes(own_ps=result[:, 0], duration_ps=result[:, 1], shared_ps=result[:, 2:])
    placed = place_blocks(owner(), times, num_pes, room)
    _place(groups, placed.first_start_ps, placed.last_start_ps, placed.first_pe)
    return placed.makespan_ps


def _owners(moved: list[GroupTraffic], num_programs: int) -> Array:
    """Return the number of every program's segment, group after group, -1 for none."""
    owner = np.full(num_programs, -1, dtype=np.int32)
    first = 0
    for group in moved:
        owner[group.programs] = group.segment_of + first
        first += len(group.sizes)
    return owner


def _one_by_one(groups: list[GroupWaves], owner: Array, num_pes: int) -> int:
    """Give each program, in order, to the PE that can begin it first."""
    intervals, durations = _times(groups)
    values, counts = runs_of(owner)
    place = _singly if len(owner) < _SHORT_RUN * len(values) else _in_runs
    first, last, pe = place(values, counts, intervals, num_pes)
    _place(groups, first, last, pe)
    return int((last + durations).max())


def _singly(
    values: Array, counts: Array, intervals: Array, num_pes: int
) -> tuple[Array, Array, Array]:
    """Return, by segment, the first and the last start and the first PE."""
    first, last, first_pe = ([-1] * len(intervals) for _ in range(3))
    durations = intervals.tolist()
    free = [(0, pe) for pe in range(num_pes)]
    for index in np.repeat(values, counts).tolist():
        if index < 0:
            continue
        start, pe = free[0]
        heapq.heapreplace(free, (start + durations[index], pe))
        if first[index] < 0:
            first[index], first_pe[index] = start, pe
        last[index] = start
    return np.array(first), np.array(last), np.array(first_pe)


def _in_runs(
    values: Array, counts: Array, intervals: Array, num_pes: int
) -> tuple[Array, Array, Array]:
    """Do as :func:`_singly`.

    Of programs in a row that take equally long, as many are placed at once as there are PEs that
    come free before the first of them hands its PE on.
    """
    first, last, first_pe = ([-1] * len(intervals) for _ in range(3))
    steps = (intervals.astype(object) * num_pes).tolist()
    # When a PE comes free, times the number of PEs, plus the PE: in order, as a list of integers.
    free = list(range(num_pes))
    for index, count in zip(values.tolist(), counts.tolist(), strict=True):
        if index < 0:
            continue
        step = steps[index]
        if first[index] < 0:
            first[index], first_pe[index] = divmod(free[0], num_pes)
        while count:
            again = free[0] - free[0] % num_pes + step
            at_once = max(1, min(count, bisect_left(free, again)))
            if at_once == num_pes:
                # All PEs come free before the first one does again, and so it goes on.
                rounds = count // num_pes
                last[index] = (free[-1] + (rounds - 1) * step) // num_pes
                free = [key + rounds * step for key in free]
                count -= rounds * num_pes
                continue
            last[index] = free[at_once - 1] // num_pes
            free[:at_once] = [key + step for key in free[:at_once]]
            free.sort()
            count -= at_once
    return np.array(first), np.array(last), np.array(first_pe)
