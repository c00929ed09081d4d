"""How fast a PE runs programs that differ only in trip counts.

The time of a program is made of sums and maxima, so from some trip count on it grows evenly with
the trip count, with the period of the loop's steady state (docs/model/kernels.md). Where trip
counts rise evenly from path to path, a few paths are run, seen to lie on a line, and the others put
on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kernbench.dtypes import Array
from kernbench.kernel_time.costs.command_costs import ProgramCosts
from kernbench.kernel_time.program.pipeline import (
    PipelineRun,
    PipelineTimes,
    SideBySide,
    SiteTimes,
    interval_in_turns_ps,
    interval_ps,
    side_by_side,
)
from kernbench.kernel_time.program.queues import Queue
from kernbench.kernel_time.program.timed_plan import ProgramPlan

Vector = tuple[int, ...]
"""Trip counts, in order of their loops."""

_GOOD_ENOUGH = 1.05
"""How far from the best possible interval is near enough: no other order of commands is tried
then."""
_RUN_AT_ONCE = 8
"""The paths at an end of a row that are run: those with the fewest iterations, in which loops do
not become steady."""


@dataclass(frozen=True, slots=True)
class PeTiming:
    """What decides how a PE's programs follow each other."""

    resident: int
    """How many a PE has begun and not ended."""
    per_pe: int
    """How many programs the busiest PE runs in all."""
    are_blocks: bool = False
    """Whether schedulers of the PE choose among warps of all programs, in every cycle."""


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """How long a PE's queues take for one program, limits of shared memory aside."""

    pipeline: PipelineTimes
    interval_ps: int | None
    """From one program to the next, None where they do not overlap; 0 where nothing but their
    use of queues keeps them apart."""


class Paces:
    """The paces of programs whose commands cost the same in every iteration."""

    def __init__(self, plan: ProgramPlan, times: SiteTimes, timing: PeTiming) -> None:
        self._plan, self._times, self._timing = plan, times, timing
        self._together = min(timing.resident, timing.per_pe)
        self._periods: set[int] = set()

    def of(self, programs: Sequence[tuple[Mapping[int, int], ProgramCosts]]) -> list[Pace]:
        """Return the pace of each program, given its trip counts and its costs."""
        vectors = [tuple(count for _, count in sorted(trips.items())) for trips, _ in programs]
        different = dict(zip(vectors, programs, strict=True))
        paces: dict[Vector, Pace] = {}
        for row in _even_rows(sorted(different)):
            # Long loops tell how they repeat themselves: where one is long, another may be short.
            for vector in {row[0], row[len(row) // 2], row[-1]}:
                paces[vector] = self.run(*different[vector])
            stride = math.lcm(*self._periods)
            for start in range(min(stride, len(row))):
                line = row[start::stride]
                _Line(self, [different[vector] for vector in line], line, paces).fill()
        return [paces[vector] for vector in vectors]

    @cached_property
    def _turns(self) -> SideBySide:
        return side_by_side(self._plan, self._times, self._together)

    def run(self, trips: Mapping[int, int], costs: ProgramCosts) -> Pace:
        """Return the pace of one program."""
        run = PipelineRun(self._plan, self._times, True, trips)
        pipeline = run.times()
        self._periods |= run.periods
        interval = None
        if self._together > 1 and self._timing.are_blocks:
            # They begin together, and schedulers choose among the warps of all.
            interval = 0
        elif self._together > 1:
            interval = interval_ps(self._plan, self._times, self._timing.resident, trips)
            # No order of commands is better than full queues, or than no wait for another.
            least = max(-(-pipeline.end_ps // self._together), *busy_ps(self._plan, costs))
            if interval > _GOOD_ENOUGH * least:
                interval = min(interval, interval_in_turns_ps(self._turns, trips))
        return Pace(pipeline, interval)


def busy_ps(plan: ProgramPlan, costs: ProgramCosts) -> list[int]:
    """Return how long a program takes each queue of its PE."""
    return _by_queue(plan, costs.busy_ps)


def own_ps(plan: ProgramPlan, costs: ProgramCosts) -> list[int]:
    """Return how long a program needs each engine of its PE, and its port.

    What it waits for HBM and the cache is not in that. Products wait for vector math where there
    are few warps.
    """
    own = _by_queue(plan, costs.own_ps)
    own[Queue.GEMM] = max(own[Queue.GEMM], costs.warps_ps)
    return own


def _by_queue(plan: ProgramPlan, by_site: Sequence[int]) -> list[int]:
    queue = [0] * len(Queue)
    for site in plan.sites:
        queue[site.queue] += by_site[site.index]
    return queue


def _even_rows(vectors: Sequence[Vector]) -> list[Sequence[Vector]]:
    """Cut the vectors where the step from one to the next changes."""
    steps = [
        tuple(y - x for x, y in zip(*pair, strict=True)) for pair in itertools.pairwise(vectors)
    ]
    rows: list[Sequence[Vector]] = []
    start = 0
    while start < len(vectors):
        stop = start + 1
        while stop < len(vectors) and steps[stop - 1] == steps[start]:
            stop += 1
        rows.append(vectors[start:stop])
        start = stop
    return rows


class _Line:
    """Programs of evenly rising trip counts: some are run, the others interpolated."""

    def __init__(
        self,
        paces: Paces,
        programs: Sequence[tuple[Mapping[int, int], ProgramCosts]],
        vectors: Sequence[Vector],
        result: dict[Vector, Pace],
    ) -> None:
        self._paces, self._programs, self._vectors = paces, programs, vectors
        self._found = result
        self._numbers: dict[int, Array] = {}

    def fill(self) -> None:
        """Find the pace of every program."""
        last = len(self._vectors) - 1
        low, high = min(_RUN_AT_ONCE - 1, last), last
        # While one loop goes around more often from path to path, another may do so less often.
        if any(end < start for start, end in zip(self._vectors[0], self._vectors[-1], strict=True)):
            high = max(low, last - _RUN_AT_ONCE + 1)
        for place in (*range(low + 1), *range(high, last + 1)):
            self._at(place)
        self._between(low, high)

    def _between(self, low: int, high: int) -> None:
        if high - low < 2:
            return
        quarters = {low + (high - low) * quarter // 4 for quarter in (1, 2, 3)}
        # Paths in which a loop is not steady yet are at an end, next to those that are run.
        inner = sorted({low + 1, *quarters, high - 1} - {low, high})
        first, width = self._at(low), high - low
        rise = self._at(high) - first
        # An interval is rounded up, so that it may lie off by one.
        off = [(self._at(place) - first) * width - rise * (place - low) for place in inner]
        if (np.abs(off) <= self._slack * width).all():
            for place in range(low + 1, high):
                if self._vectors[place] not in self._found:
                    numbers = first + (rise * (place - low) + width // 2) // width
                    self._found[self._vectors[place]] = _as_pace(numbers.tolist())
            return
        middle = low + width // 2
        self._between(low, middle)
        self._between(middle, high)

    def _at(self, place: int) -> Array:
        """Return the numbers of a program that is run."""
        number = self._numbers.get(place)
        if number is None:
            vector = self._vectors[place]
            pace = self._found.get(vector)
            if pace is None:
                pace = self._found[vector] = self._paces.run(*self._programs[place])
            pipeline = pace.pipeline
            interval = -1 if pace.interval_ps is None else pace.interval_ps
            number = self._numbers[place] = np.array(
                [interval, pipeline.end_ps, *pipeline.first_start_ps, *pipeline.last_end_ps],
                dtype=np.int64,
            )
        return number

    @cached_property
    def _slack(self) -> Array:
        slack = np.zeros(len(self._at(0)), dtype=np.int64)
        slack[0] = 1
        return slack


def _as_pace(numbers: list[int]) -> Pace:
    interval, end, *sites = numbers
    half = len(sites) // 2
    pipeline = PipelineTimes(end, tuple(sites[:half]), tuple(sites[half:]))
    return Pace(pipeline, None if interval < 0 else interval)
