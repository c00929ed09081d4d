"""When blocks begin on the multiprocessors of a GPU: as soon as there is room (ADR-0142).

All blocks that fit begin together. Those of one multiprocessor hold up each other by what each
needs of its engines; HBM and the cache serve all blocks of the device, in order.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_SHORT_RUN = 8
"""Blocks in a row that take equally long: where runs are shorter, they are placed singly."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockTimes:
    """What blocks take, by segment."""

    own_ps: Array
    """Of the engine of their multiprocessor that they keep busiest."""
    shared_ps: Array
    """Of each resource that all multiprocessors share, for one block alone: a row per segment."""
    duration_ps: Array
    """From its start to its end if no other block is on its multiprocessor."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Where blocks begin, by segment, and when the last of all ends."""

    first_start_ps: Array
    last_start_ps: Array
    first_pe: Array
    makespan_ps: int


def place_blocks(owner: Array, times: BlockTimes, num_pes: int, room: int) -> Placed:
    """Give each block, in order, to the multiprocessor that can begin it first.

    ``owner`` names the segment of each block, -1 for none; ``room`` is how many one can hold.
    """
    values, counts = _runs(owner)
    if len(owner) >= _SHORT_RUN * len(values):
        whole = (counts[:-1] % num_pes == 0).all() and counts[-1] <= num_pes
        if values.min() >= 0 and (whole or len(values) == 1):
            return _in_step(values.tolist(), counts.tolist(), times, num_pes, room)
    # Blocks of many segments take equally long where they differ in what does not hold them up.
    kinds, kind_of = _kinds(times)
    present = owner >= 0
    if not present.all():
        owner = owner[present]
    runs = _runs(kind_of[owner])
    if len(owner) < _SHORT_RUN * len(runs[0]):
        return _singly(owner.tolist(), times, num_pes, room)
    starts, pes, makespan_ps = _in_runs(runs[0].tolist(), runs[1].tolist(), kinds, num_pes, room)
    first, last, first_pe = _nothing(times)
    # Of several blocks of a segment, the one that is assigned last stays.
    last[owner] = starts
    first[owner[::-1]], first_pe[owner[::-1]] = starts[::-1], pes[::-1]
    return Placed(first, last, first_pe, makespan_ps)


def _runs(numbers: Array) -> tuple[Array, Array]:
    """Return which numbers follow each other, and how many times in a row each is there."""
    bounds = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1, append=numbers[-1:] - 1))
    return numbers[bounds[:-1]], np.diff(bounds)


def _kinds(times: BlockTimes) -> tuple[BlockTimes, Array]:
    """Return the times that segments have, each once, and which of them each segment has."""
    columns = (times.own_ps, times.duration_ps, *times.shared_ps.T)
    found, kind_of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    kinds = BlockTimes(own_ps=found[:, 0], duration_ps=found[:, 1], shared_ps=found[:, 2:])
    return kinds, kind_of.reshape(-1)


def _nothing(times: BlockTimes) -> tuple[Array, Array, Array]:
    first, last, pe = (np.full(len(times.own_ps), -1, dtype=np.int64) for _ in range(3))
    return first, last, pe


def _in_step(
    values: list[int], counts: list[int], times: BlockTimes, num_pes: int, room: int
) -> Placed:
    """Place waves of equal blocks: a block of each on every multiprocessor."""
    first, last, pe = _nothing(times)
    own, shared, durations = (
        each.tolist() for each in (times.own_ps, times.shared_ps, times.duration_ps)
    )
    ends = deque([0] * room, maxlen=room)
    served = [0] * times.shared_ps.shape[1]
    free = makespan = 0
    for index, count in zip(values, counts, strict=True):
        for before in range(0, count, num_pes):
            start = max(free, ends[0])
            blocks = min(num_pes, count - before)
            served = [
                max(until, start) + each * blocks
                for until, each in zip(served, shared[index], strict=True)
            ]
            end = max(start + durations[index], *served)
            ends.append(end)
            free = start + own[index]
            makespan = max(makespan, end)
            if first[index] < 0:
                first[index], pe[index] = start, 0
            last[index] = start
    return Placed(first, last, pe, makespan)


def _singly(owners: list[int], times: BlockTimes, num_pes: int, room: int) -> Placed:
    first, last, first_pe = _nothing(times)
    own, shared, durations = (
        each.tolist() for each in (times.own_ps, times.shared_ps, times.duration_ps)
    )
    free = [(0, pe) for pe in range(num_pes)]
    ends = [deque([0] * room, maxlen=room) for _ in range(num_pes)]
    served = [0] * times.shared_ps.shape[1]
    makespan = 0
    for index in owners:
        start, pe = free[0]
        served = [
            max(until, start) + each for until, each in zip(served, shared[index], strict=True)
        ]
        end = max(start + durations[index], *served)
        makespan = max(makespan, end)
        ends[pe].append(end)
        heapq.heapreplace(free, (max(start + own[index], ends[pe][0]), pe))
        if first[index] < 0:
            first[index], first_pe[index] = start, pe
        last[index] = start
    return Placed(first, last, first_pe, makespan)


def _in_runs(
    values: list[int], counts: list[int], times: BlockTimes, num_pes: int, room: int
) -> tuple[Array, Array, int]:
    """Place blocks as :func:`_singly` does; return each one's start and PE, and the makespan.

    Of blocks in a row that take equally long, as many are placed at once as there are
    multiprocessors that have room before any of them has room again.
    """
    starts, on_pes = (np.empty(sum(counts), dtype=np.int64) for _ in range(2))
    free = np.zeros(num_pes, dtype=np.int64)
    pes = np.arange(num_pes)
    # When the blocks end that each has begun last, oldest first.
    ends = np.zeros((num_pes, room), dtype=np.int64)
    served = np.zeros(times.shared_ps.shape[1], dtype=np.int64)
    placed = makespan = 0
    for index, count in zip(values, counts, strict=True):
        own, shared = int(times.own_ps[index]), times.shared_ps[index]
        duration = int(times.duration_ps[index])
        while count:
            again = np.maximum(free + own, ends[:, 1] if room > 1 else free + duration)
            in_turn = free[1:] < np.minimum.accumulate(again)[:-1]
            at_once = min(count, 1 + int(np.logical_and.accumulate(in_turn).sum()))
            now = slice(placed, placed + at_once)
            starts[now], on_pes[now] = free[:at_once], pes[:at_once]
            before = shared * np.arange(at_once)[:, None]
            waiting = np.maximum.accumulate(free[:at_once, None] - before, axis=0)
            queues = np.maximum(served, waiting) + before + shared
            end = np.maximum(free[:at_once] + duration, queues.max(axis=1))
            served, makespan = queues[-1], max(makespan, int(end.max()))
            ends[:at_once, :-1] = ends[:at_once, 1:]
            ends[:at_once, -1] = end
            free[:at_once] = np.maximum(free[:at_once] + own, ends[:at_once, 0])
            order = np.lexsort((pes, free))
            free, pes, ends = free[order], pes[order], ends[order]
            placed, count = placed + at_once, count - at_once
    return starts, on_pes, makespan
