"""Which programs run when: programs go to PEs in order, each to the PE that can begin it first.

A PE begins a program before the one before it has ended, as far as TCM holds them; their commands
still take the PE's queues in order.

The programs that would run together if all took equally long, a *wave*, share the memory system:
their number divides its bandwidth, and a tile that several of them read comes from HBM once where
there is a cache. Programs of a group that move the same amounts are one *class*, and a class in a
wave is a *segment*: it is timed once, whatever the number of its programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    Atomic,
    DmaRead,
    DmaWrite,
    KernelTrace,
    ProgramGroup,
    access_of,
    by_path,
)
from kernbench.hardware import SipSpec
from kernbench.sim_engine.conditions import Conditions
from kernbench.sim_engine.kernel_bursts import (
    pattern_fingerprints,
    program_fingerprints,
    touched,
)
from kernbench.sim_engine.kernel_costs import CostModel, ProgramCosts, Sharing, Traffic
from kernbench.sim_engine.kernel_pipeline import (
    PipelineTimes,
    interval_in_turns_ps,
    interval_ps,
    run_pipeline,
)
from kernbench.sim_engine.kernel_plan import QUEUES, ProgramPlan, build_program_plan

Array = npt.NDArray[Any]

_MIX = -7046029254386353131
_GOOD_ENOUGH = 1.05
"""Of the best interval that there can be: no other order of commands is tried then."""


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One program of a class under one sharing."""

    costs: ProgramCosts
    pipeline: PipelineTimes
    duration_ps: int
    """The pipeline's time, or longer where a shared resource cannot keep up with it."""
    interval_ps: int
    """From its start to when the PE begins the next program like it."""


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """What a PE's queues make of one program, before the memory system has its say."""

    pipeline: PipelineTimes
    interval_ps: int | None
    """From one program to the next, None where they do not overlap."""


@dataclass(slots=True, eq=False)
class Segment:
    """The programs of one class in one wave."""

    wave: int
    program_ids: Array
    traffic: tuple[Traffic | None, ...]
    sharing: Sharing
    timed: Timed
    first_start_ps: int = 0
    last_start_ps: int = 0
    first_pe: int = 0

    @property
    def count(self) -> int:
        return len(self.program_ids)


@dataclass(frozen=True, slots=True, eq=False)
class GroupWaves:
    """A program group cut in segments."""

    plan: ProgramPlan
    segments: list[Segment]

    def tally(self) -> list[tuple[ProgramCosts, int]]:
        """Return the group's different costs of programs, and how many programs have them."""
        counts: dict[int, int] = {}
        different: dict[int, ProgramCosts] = {}
        for segment in self.segments:
            costs = segment.timed.costs
            different[id(costs)] = costs
            counts[id(costs)] = counts.get(id(costs), 0) + segment.count
        return [(costs, counts[key]) for key, costs in different.items()]


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """All programs of a launch, placed in time from the first program's start on."""

    groups: list[GroupWaves]
    num_cubes: int
    """Cubes that run programs; those that follow each other run in different cubes."""
    makespan_ps: int

    def tally(self) -> Iterator[tuple[ProgramCosts, int]]:
        """Yield the different costs of programs, and how many programs have them."""
        for group in self.groups:
            yield from group.tally()


def build_waves(trace: KernelTrace, sip: SipSpec, conditions: Conditions) -> Waves:
    """Return when each program of a launch runs on the PEs of a SIP."""
    num_cubes, pes_per_cube = pes_in_use(sip, conditions)
    num_pes = num_cubes * pes_per_cube
    timing = Timing(
        resident_programs(trace.tcm_bytes, trace.staged_bytes, sip),
        -(-trace.num_programs // num_pes),
    )
    groups = [
        group.waves(CostModel(group.plan, sip, conditions), timing)
        for group in _groups(trace, sip, conditions, num_pes)
    ]
    segments = [segment for group in groups for segment in group.segments]
    makespan = _in_lock_step(segments)
    if makespan is None:
        makespan = _one_by_one(segments, trace.num_programs, num_pes)
    return Waves(groups, num_cubes, makespan)


# What does not depend on rates is found once per trace: other conditions and other machines with
# as many PEs share it.
_ANALYSED: WeakKeyDictionary[KernelTrace, dict[Any, list[GroupAnalysis]]] = WeakKeyDictionary()


def _groups(
    trace: KernelTrace, sip: SipSpec, conditions: Conditions, num_pes: int
) -> list[GroupAnalysis]:
    """Return the analysed groups of a trace, for a SIP of this shape."""
    cache = sip.cache
    room = None if cache is None else cache.held_bytes
    copies = tuple(
        (param, place.copies) for param, place in conditions.placements if place.copies > 1
    )
    key = (num_pes, sip.cube.hbm_burst_bytes, room, copies)
    known = _ANALYSED.setdefault(trace, {})
    found = known.get(key)
    if found is None:
        each = by_path(trace)
        found = known[key] = [
            GroupAnalysis(each, group, num_pes, sip.cube.hbm_burst_bytes, room, dict(copies))
            for group in each.groups
            if len(group.program_ids)
        ]
    return found


@dataclass(frozen=True, slots=True)
class Timing:
    """What decides how a PE's programs follow each other."""

    resident: int
    """How many a PE has begun and not ended."""
    per_pe: int
    """How many programs the busiest PE runs in all."""


def resident_programs(tcm_bytes: int, staged_bytes: int, sip: SipSpec) -> int:
    """Return how many programs a PE can have in TCM at the same time, at least one.

    Where part of the TCM is registers, loads that run ahead (the ``staged_bytes`` of a program's
    ``tcm_bytes``) have the other part to themselves.
    """
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
    return max(each.num_cubes for each in places), max(each.num_pes for each in places)


class GroupAnalysis:
    """What a program group moves: classes, traffic, shared tiles, conflicts."""

    def __init__(
        self,
        trace: KernelTrace,
        group: ProgramGroup,
        num_pes: int,
        burst_bytes: int,
        room: int | None,
        copies: dict[int, int],
    ) -> None:
        self.plan = build_program_plan(group.body, trace.num_slots)
        self.burst_bytes = burst_bytes
        self.copies = copies
        self.ids = group.program_ids
        self.wave_of = self.ids // num_pes
        self.waves_used, self.wave_index = np.unique(self.wave_of, return_inverse=True)
        self.members = np.bincount(self.wave_index)
        self.active = np.minimum(num_pes, trace.num_programs - self.waves_used * num_pes)
        self.dma = [
            s for s in self.plan.sites if isinstance(s.command, DmaRead | DmaWrite | Atomic)
        ]
        self.class_of, self.traffic = self._classes()
        self.missed = self._missed(room)
        self.conflicts = self._conflicts()
        num_classes = len(self.traffic)
        pairs = self.wave_index * num_classes + self.class_of
        order = np.argsort(pairs, kind="stable")
        found, starts = np.unique(pairs[order], return_index=True)
        wave_at, class_at = np.divmod(found, num_classes)
        keys = np.column_stack(
            [
                class_at,
                self.active[wave_at],
                self.members[wave_at],
                self.missed[wave_at],
                self.conflicts[wave_at],
            ]
        )
        bounds = [*starts.tolist(), len(order)]
        self.parts: list[tuple[int, Array, tuple[int, ...]]] = [
            (wave, self.ids[order[bounds[index] : bounds[index + 1]]], tuple(key))
            for index, (wave, key) in enumerate(
                zip(self.waves_used[wave_at].tolist(), keys.tolist(), strict=True)
            )
        ]
        """Of each segment: its wave, its programs, and what it has in common with like ones."""

    def _classes(self) -> tuple[Array, list[tuple[Traffic | None, ...]]]:
        """Split the programs by what they move."""
        count = len(self.ids)
        marks = np.zeros(count, dtype=np.int64)
        for site in self.dma:
            marks = marks * _MIX + pattern_fingerprints(site, count)
        _, first, class_of = np.unique(marks, return_index=True, return_inverse=True)
        return class_of.reshape(-1), [self._traffic(position) for position in first.tolist()]

    def _traffic(self, position: int) -> tuple[Traffic | None, ...]:
        found: list[Traffic | None] = [None] * len(self.plan.sites)
        for site in self.dma:
            dims, moved = touched(site, position, self.burst_bytes)
            trips = {1 + loop.loop_id: loop.trip_count for loop in site.loops}
            repeats = 1
            for dim, trip in trips.items():
                repeats *= 1 if dim in dims else trip
            shape = tuple(trips[dim] for dim in dims)
            copies = 1
            if isinstance(site.command, DmaWrite | Atomic):
                copies = self.copies.get(access_of(site.command).param, 1)
            is_load = not isinstance(site.command, Atomic) or site.command.kind == "load"
            passes = 1 if is_load else 2
            found[site.index] = Traffic(dims, shape, moved, repeats, copies, passes)
        return tuple(found)

    def waves(self, model: CostModel, timing: Timing) -> GroupWaves:
        known: dict[tuple[int, ...], tuple[Sharing, Timed]] = {}
        paces: dict[Any, Pace] = {}
        segments = []
        for wave, program_ids, key in self.parts:
            if key not in known:
                known[key] = self._time(key, model, timing, paces)
            segments.append(Segment(wave, program_ids, self.traffic[key[0]], *known[key]))
        return GroupWaves(self.plan, segments)

    def _time(
        self,
        key: tuple[int, ...],
        model: CostModel,
        timing: Timing,
        paces: dict[Any, Pace],
    ) -> tuple[Sharing, Timed]:
        which, active, members, *rest = key
        num_sites = len(self.plan.sites)
        sharing = Sharing(active, members, tuple(rest[:num_sites]), tuple(rest[num_sites:]))
        costs = model.program(self.traffic[which], sharing)
        # Many segments differ only in what does not hold them up.
        same = (costs.times.occupancy_ps, costs.times.latency_ps)
        pace = paces.get(same)
        if pace is None:
            pace = paces[same] = self._pace(costs, timing)
        pipeline = pace.pipeline
        duration = interval = max(pipeline.end_ps, costs.least_ps)
        if pace.interval_ps is not None:
            interval = max(pace.interval_ps, costs.least_ps, *self._busy_ps(costs))
        return sharing, Timed(costs, pipeline, duration, min(interval, duration))

    def _pace(self, costs: ProgramCosts, timing: Timing) -> Pace:
        interval = None
        pipeline = run_pipeline(self.plan, costs.times)
        together = min(timing.resident, timing.per_pe)
        if together > 1:
            interval = interval_ps(self.plan, costs.times, timing.resident)
            # No order of commands is better than full queues, or than nobody waiting for another.
            least = max(-(-pipeline.end_ps // together), *self._busy_ps(costs))
            if interval > _GOOD_ENOUGH * least:
                in_turns = interval_in_turns_ps(self.plan, costs.times, together)
                interval = min(interval, in_turns)
        return Pace(pipeline, interval)

    def _busy_ps(self, costs: ProgramCosts) -> list[int]:
        """Return how long a program takes each queue of its PE."""
        busy = [0] * len(QUEUES)
        for site in self.plan.sites:
            busy[site.queue] += costs.busy_ps[site.index]
        return busy

    def _missed(self, room: int | None) -> Array:
        """Return, by wave and site, how many of the programs' tiles come from HBM."""
        missed = np.repeat(self.members[:, None], len(self.plan.sites), axis=1)
        if room is None:
            return missed
        for bytes_read, site, tiles in sorted(self._shared_tiles(), key=lambda each: each[:2]):
            # The smallest operands stay in the cache for the whole launch, if they fit together.
            kept = bytes_read <= room
            room -= bytes_read if kept else 0
            if kept:
                _, first = np.unique(tiles, return_index=True)
                waves = self.wave_index[first]
            else:
                distinct = int(tiles.max()) + 1
                waves = np.unique(self.wave_index * distinct + tiles) // distinct
            missed[:, site] = np.bincount(waves, minlength=len(self.members))
        return missed

    def _conflicts(self) -> Array:
        """Return, by wave and site, how many programs change the same elements by an atomic.

        Addresses that depend on data are taken as distinct. Has no columns without atomics.
        """
        atomics = {
            site.index: site.command.access
            for site in self.plan.sites
            if isinstance(site.command, Atomic)
        }
        width = len(self.plan.sites) if atomics else 0
        conflicts = np.ones((len(self.members), width), dtype=np.int64)
        for index, access in atomics.items():
            if access.gather is not None:
                continue
            marks = program_fingerprints(access, len(self.ids))
            _, tiles = np.unique(marks, return_inverse=True)
            distinct = int(tiles.max()) + 1
            per_wave = np.unique(self.wave_index * distinct + tiles.reshape(-1)) // distinct
            targets = np.bincount(per_wave, minlength=len(self.members))
            conflicts[:, index] = -(-self.members // targets)
        return conflicts

    def _shared_tiles(self) -> list[tuple[int, int, Array]]:
        """Return (bytes of all distinct tiles, site, tile of each program) of the shared reads."""
        count, found = len(self.ids), []
        per_class = np.bincount(self.class_of)
        for site in self.dma:
            if not isinstance(site.command, DmaRead) or access_of(site.command).gather is not None:
                continue
            marks = program_fingerprints(access_of(site.command), count)
            _, tiles = np.unique(marks, return_inverse=True)
            tiles = tiles.reshape(-1)
            moved = 0
            for number, traffic in zip(per_class.tolist(), self.traffic, strict=True):
                each = traffic[site.index]
                assert each is not None
                moved += number * each.burst_bytes
            distinct = int(tiles.max()) + 1
            if distinct == count:
                continue  # nothing is shared
            found.append((moved * distinct // count, site.index, tiles))
        return found


def _in_lock_step(segments: list[Segment]) -> int | None:
    """Place waves one after the other, where all programs of each take equally long."""
    intervals: dict[int, int] = {}
    for segment in segments:
        interval = segment.timed.interval_ps
        if intervals.setdefault(segment.wave, interval) != interval:
            return None
    starts, now = {}, 0
    for wave in sorted(intervals):
        starts[wave] = now
        now += intervals[wave]
    used: dict[int, int] = {}
    makespan = 0
    for segment in segments:
        start = starts[segment.wave]
        segment.first_start_ps = segment.last_start_ps = start
        segment.first_pe = used.get(segment.wave, 0)
        used[segment.wave] = segment.first_pe + segment.count
        makespan = max(makespan, start + segment.timed.duration_ps)
    return makespan


def _one_by_one(segments: list[Segment], num_programs: int, num_pes: int) -> int:
    """Give each program, in order, to the PE that can begin it first.

    Of programs in a row that take equally long, as many are placed at once as there are PEs that
    come free before the first of them hands its PE on.
    """
    owner = np.full(num_programs, -1, dtype=np.int64)
    for index, segment in enumerate(segments):
        owner[segment.program_ids] = index
        segment.first_start_ps = -1
    free = np.zeros(num_pes, dtype=np.int64)
    pes = np.arange(num_pes)
    makespan = 0
    for index, count in _runs(owner):
        if index < 0:
            continue
        segment = segments[index]
        interval = segment.timed.interval_ps
        while count:
            at_once = max(1, min(count, int(np.searchsorted(free, free[0] + interval))))
            last = int(free[at_once - 1])
            if segment.first_start_ps < 0:
                segment.first_start_ps, segment.first_pe = int(free[0]), int(pes[0])
            segment.last_start_ps = last
            makespan = max(makespan, last + segment.timed.duration_ps)
            free[:at_once] += interval
            order = np.lexsort((pes, free))
            free, pes = free[order], pes[order]
            count -= at_once
    return makespan


def _runs(values: Array) -> Iterator[tuple[int, int]]:
    """Yield every value and how often it follows itself."""
    bounds = np.flatnonzero(np.diff(values, prepend=values[:1] - 1, append=values[-1:] - 1))
    yield from zip(values[bounds[:-1]].tolist(), np.diff(bounds).tolist(), strict=True)
