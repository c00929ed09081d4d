"""When blocks begin on the multiprocessors of a GPU: as soon as there is room.

See docs/model/kernels.md.

All blocks that fit begin together. Those of one multiprocessor hold up each other by what each
needs of its engines; HBM and the cache serve all blocks of the device, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from kernbench.dtypes import Array
from kernbench.kernel_time.launch.multiprocessors import BlockTimes, place_in_order

_SHORT_RUN = 8
"""Blocks in a row that take equally long: where runs are shorter, no waves are looked for."""


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
    values, counts = runs_of(owner)
    if len(owner) >= _SHORT_RUN * len(values):
        whole = (counts[:-1] % num_pes == 0).all() and counts[-1] <= num_pes
        if values.min() >= 0 and (whole or len(values) == 1):
            return _in_step(values.tolist(), counts.tolist(), times, num_pes, room)
    # Blocks of many segments take equally long where they differ in what does not hold them up.
    kinds, kind_of = _kinds(times)
    present = owner >= 0
    if not present.all():
        owner = owner[present]
    starts, pes, makespan_ps = place_in_order(kind_of[owner], kinds, num_pes, room)
    first, last, first_pe = _nothing(times)
    # Of several blocks of a segment, the one that is assigned last stays.
    last[owner] = starts
    first[owner[::-1]], first_pe[owner[::-1]] = starts[::-1], pes[::-1]
    return Placed(first, last, first_pe, makespan_ps)


def runs_of(numbers: Array) -> tuple[Array, Array]:
    """Return which numbers follow each other, and how many times in a row each is there."""
    bounds = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1, append=numbers[-1:] - 1))
    return numbers[bounds[:-1]], np.diff(bounds)


def _kinds(times: BlockTimes) -> tuple[BlockTimes, Array]:
    """Return the times that segments have, each once, and which of them each segment has."""
    columns = (times.own_ps, times.duration_ps, *times.shared_ps.T)
    array, kind_of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    kinds = BlockTimes(own_ps=array[:, 0], duration_ps=array[:, 1], shared_ps=array[:, 2:])
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
        array.tolist() for array in (times.own_ps, times.shared_ps, times.duration_ps)
    )
    ends = deque([0] * room, maxlen=room)
    served = [0] * times.shared_ps.shape[1]
    free = makespan = 0
    for index, count in zip(values, counts, strict=True):
        for before in range(0, count, num_pes):
            start = max(free, ends[0])
            blocks = min(num_pes, count - before)
            served = [
                max(until, start) + item * blocks
                for until, item in zip(served, shared[index], strict=True)
            ]
            needed = (until for until, item in zip(served, shared[index], strict=True) if item)
            end = max((start + durations[index], *needed))
            ends.append(end)
            free = start + own[index]
            makespan = max(makespan, end)
            if first[index] < 0:
                first[index], pe[index] = start, 0
            last[index] = start
    return Placed(first, last, pe, makespan)
