"""The multiprocessors of a GPU as blocks are given to them, each to the one that has room first."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from kernbench.dtypes import Array

_FEW_BLOCKS = 64
"""Fewer are placed one by one."""
_WATCHED, _SMALL = 32, 16
"""Where so many batches have fewer blocks than this on average, single ones are faster."""
_MANY_SINGLE = 4096
"""So many blocks are placed one by one then."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockTimes:
    """What blocks take, by their kind or their segment."""

    own_ps: Array
    """The time of the engine of their multiprocessor that they keep busiest."""
    shared_ps: Array
    """The time of each resource that all multiprocessors share, for one block alone: a row for each
    kind."""
    duration_ps: Array
    """The time from its start to its end if no other block is on its multiprocessor."""


def place_in_order(
    kinds: Array, times: BlockTimes, num_pes: int, room: int
) -> tuple[Array, Array, int]:
    """Give each block, in order, to the multiprocessor that can begin it first.

    ``kinds`` is that of each block. Returns when and where each one begins, and when the last of
    all ends. Where all multiprocessors are as they were some blocks before, only later, the blocks
    that follow are placed as those were, as far as they are of the same kinds.
    """
    count = len(kinds)
    starts, pes = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    device = Multiprocessors(times, num_pes, room)
    if count < _FEW_BLOCKS:
        device.place_singly(kinds, starts, pes)
        return starts, pes, device.makespan_ps
    device.mark()
    placed = marked = watched = batches = 0
    patience = 1
    while placed < count:
        now = slice(placed, placed + num_pes)
        placed += device.place(kinds[now], starts[now], pes[now])
        batches += 1
        later_ps, period = device.later_ps(), placed - marked
        again = 0 if later_ps is None else _num_alike(kinds, placed, period) // period
        if later_ps is not None and again:
            last, end = slice(marked, placed), placed + again * period
            shifts = later_ps * np.arange(1, again + 1)[:, None]
            starts[placed:end] = (starts[last] + shifts).reshape(-1)
            pes[placed:end] = np.tile(pes[last], again)
            device.delay(later_ps * again)
            placed = end
        if again or batches >= patience:
            # Twice as long each time: a mark is made within the period, however long that is.
            patience = 1 if again else 2 * patience
            device.mark()
            marked, batches = placed, 0
        if device.num_batches == _WATCHED:
            if placed - watched < _SMALL * _WATCHED:
                now = slice(placed, placed + _MANY_SINGLE)
                device.place_singly(kinds[now], starts[now], pes[now])
                placed = min(placed + _MANY_SINGLE, count)
            watched, device.num_batches = placed, 0
    return starts, pes, device.makespan_ps


def _num_alike(kinds: Array, start: int, period: int) -> int:
    """Return how many blocks from ``start`` on are of the same kinds as ``period`` before."""
    length, size = 0, 4 * period
    while True:
        some = kinds[start + length : start + length + size]
        differs = some != kinds[start + length - period :][: len(some)]
        if differs.any():
            return length + int(differs.argmax())
        length += len(some)
        if len(some) < size:
            return length
        size *= 2


class Multiprocessors:
    """When each has room again, and when what all share has served the blocks so far."""

    def __init__(self, times: BlockTimes, num_pes: int, room: int) -> None:
        self._times = times
        self._room = room
        self._free = np.zeros(num_pes, dtype=np.int64)
        """When each can begin a block, in rising order."""
        self._pes = np.arange(num_pes)
        """Their numbers, in that order."""
        self._ends = np.zeros((num_pes, room), dtype=np.int64)
        """When the blocks end that each has begun last, oldest first."""
        self._served = np.zeros(times.shared_ps.shape[1], dtype=np.int64)
        self.makespan_ps = 0
        """When the last block ends."""
        self.num_batches = 0
        self._marked: tuple[int, tuple[Array, ...]] = 0, ()
        self._end_since_ps = 0
        """When the last block ends of those since the mark."""

    def place(self, kinds: Array, starts: Array, pes: Array) -> int:
        """Place the first blocks, as many as begin before any of them makes room for another.

        Fills in when and where they begin, and returns how many these are.
        """
        times, width = self._times, len(kinds)
        free, own, duration = self._free[:width], times.own_ps[kinds], times.duration_ps[kinds]
        again = np.maximum(free + own, self._ends[:width, 1] if self._room > 1 else free + duration)
        waits = free[1:] >= np.minimum.accumulate(again)[:-1]
        count = 1 + int(waits.argmax()) if waits.any() else width
        free, own, duration, shared = (
            free[:count],
            own[:count],
            duration[:count],
            times.shared_ps[kinds[:count]],
        )
        starts[:count], pes[:count] = free, self._pes[:count]
        until = np.cumsum(shared, axis=0)
        before = until - shared
        waiting = np.maximum.accumulate(free[:, None] - before, axis=0)
        queues = np.maximum(self._served, waiting) + until
        # What needs nothing of a resource does not wait for it.
        end = np.maximum(free + duration, np.where(shared > 0, queues, 0).max(axis=1))
        self._served = queues[-1]
        self._note_end(int(end.max()))
        self._ends[:count, :-1] = self._ends[:count, 1:]
        self._ends[:count, -1] = end
        self._free[:count] = np.maximum(free + own, self._ends[:count, 0])
        self._sort()
        self.num_batches += 1
        return count

    def place_singly(self, kinds: Array, starts: Array, pes: Array) -> None:
        """Place all blocks one by one, and fill in when and where they begin."""
        own, shared, durations = (
            array.tolist()
            for array in (self._times.own_ps, self._times.shared_ps, self._times.duration_ps)
        )
        # In order, they are a heap.
        free = list(zip(self._free.tolist(), self._pes.tolist(), strict=True))
        ends = {
            pe: deque(numbers, maxlen=self._room)
            for pe, numbers in zip(self._pes.tolist(), self._ends.tolist(), strict=True)
        }
        served, latest = self._served.tolist(), 0
        at: list[tuple[int, int]] = []
        for kind in kinds.tolist():
            start, pe = free[0]
            served = [
                max(until, start) + item for until, item in zip(served, shared[kind], strict=True)
            ]
            needed = (until for until, item in zip(served, shared[kind], strict=True) if item)
            end = max((start + durations[kind], *needed))
            latest = max(latest, end)
            ends[pe].append(end)
            heapq.heapreplace(free, (max(start + own[kind], ends[pe][0]), pe))
            at.append((start, pe))
        if not at:
            return
        starts[:], pes[:] = np.array(at).T
        self._free, self._pes = np.array(free).T.copy()
        self._ends = np.array([ends[pe] for pe in self._pes.tolist()])
        self._served = np.array(served)
        self._note_end(latest)
        self._sort()

    def mark(self) -> None:
        """Keep how it is now, for :meth:`later_ps`."""
        self._marked, self._end_since_ps = (int(self._free[0]), self._state()), 0

    def later_ps(self) -> int | None:
        """Return how much later it is than at the mark, if that is all that is different."""
        begun_ps, marked = self._marked
        if not np.array_equal(self._free - self._free[0], marked[0]):
            return None
        if not all(map(np.array_equal, self._state(), marked)):
            return None
        return int(self._free[0]) - begun_ps

    def delay(self, time_ps: int) -> None:
        """Let all be as much later, after blocks as those since the mark."""
        for array in (self._free, self._ends, self._served):
            array += time_ps
        self._note_end(self._end_since_ps + time_ps)

    def _state(self) -> tuple[Array, ...]:
        """Return all that decides on blocks to come, from when the first of them can begin."""
        first = self._free[0]
        # What has ended by then holds nothing up, whenever that was.
        ends, served = np.maximum(self._ends - first, 0), np.maximum(self._served - first, 0)
        return self._free - first, self._pes.copy(), ends, served

    def _note_end(self, end_ps: int) -> None:
        self._end_since_ps = max(self._end_since_ps, end_ps)
        self.makespan_ps = max(self.makespan_ps, end_ps)

    def _sort(self) -> None:
        order = np.lexsort((self._pes, self._free))
        self._free, self._pes, self._ends = self._free[order], self._pes[order], self._ends[order]
