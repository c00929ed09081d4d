"""The queues of a PE, and how they serve: in which order, and how long a command occupies one.

Each queue serves its commands in the program's order, and all queues run in parallel. A command
starts when its operands are ready and its queue is free. It takes the queue for its *occupancy*;
its result is there a latency after the queue is free again (ADR-0007). :class:`PeQueues` serves a
program's commands by these rules, and :class:`SipQueues` keeps what outlives a part of a launch.

Loads of one loop's body are in flight together (docs/model/kernels.md). Each resource serves the
loads of an iteration in their order, and none waits for another: a load is there when every
resource has served it and the loads before it. So a load that waits for HBM and one that the cache
serves take what the busier of the two needs, and no load takes longer because some resource became
faster. What a load adds to that is its occupancy: :func:`overlapped`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PE_ENGINES,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Engine,
    Gemm,
    Loop,
    Math,
    Reduce,
    loop_dim,
)
from kernbench.dtypes import Array

if TYPE_CHECKING:
    from kernbench.kernel_time.program.timed_plan import LoopNode, Node

Slots = tuple[int, ...]
Cost = int | tuple["Cost", ...]
"""Picoseconds, or one cost per iteration of the outermost loop that it varies over."""


class Queue(IntEnum):
    """The queue of one of ``PE_ENGINES``; its value indexes these and all state per queue."""

    DMA_IN = 0
    GEMM = 1
    MATH = 2
    DMA_OUT = 3

    @property
    def engine(self) -> Engine:
        """What executes its commands."""
        return PE_ENGINES[self]


_QUEUES: Mapping[type[Command], Queue] = {
    DmaRead: Queue.DMA_IN,
    Gemm: Queue.GEMM,
    Math: Queue.MATH,
    Reduce: Queue.MATH,
    DmaWrite: Queue.DMA_OUT,
    Atomic: Queue.DMA_OUT,
}


def queue_of(command: Command) -> Queue:
    """Return the queue that serves a command, which is no loop."""
    return _QUEUES[type(command)]


# -- in which order, and when -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class QueueStep:
    """A command of one program: which queue it takes, which slots it reads and writes."""

    site: int
    queue: Queue
    reads: Slots
    writes: Slots


class PeQueues:
    """The queues of one PE while a program's commands run, and what is ready when."""

    def __init__(
        self,
        num_sites: int,
        num_slots: int,
        occupancy_ps: Sequence[Cost],
        latency_ps: Sequence[int],
    ) -> None:
        self.queue = [0] * len(Queue)
        """When each is free again."""
        self.ready = [0] * num_slots
        """When the value of each slot is there."""
        self.first = [-1] * num_sites
        """For each site, when it starts for the first time; -1 while it has not."""
        self.last = [-1] * num_sites
        """For each site, when its last run ends."""
        self.cost: list[Cost] = list(occupancy_ps)
        self.latency = latency_ps

    def loop(self, node: LoopNode, floor: int) -> int:
        """Run a loop and return when all of it has ended."""
        raise NotImplementedError

    def nodes(self, nodes: tuple[Node, ...], floor: int) -> tuple[int, int]:
        """Run ``nodes``, none before ``floor``; return the floor of what follows, and the end."""
        # The innermost loop of all timing: no calls per command.
        queue, ready, first, last = self.queue, self.ready, self.first, self.last
        end = floor
        for node in nodes:
            if not isinstance(node, QueueStep):
                floor = self.loop(node, floor)
                end = max(end, floor)
                continue
            serving = node.queue
            start = queue[serving]
            if start < floor:
                start = floor
            for slot in node.reads:
                if ready[slot] > start:
                    start = ready[slot]
            site = node.site
            free = start + self.cost[site]  # type: ignore[operator]  # an int inside all its loops
            queue[serving] = free
            done = free + self.latency[site]
            for slot in node.writes:
                ready[slot] = done
            if first[site] < 0:
                first[site] = start
            last[site] = done
            if done > end:
                end = done
        return floor, end

    def step_by(
        self, node: QueueStep, floor: int, travel: Callable[[int, int], int]
    ) -> Generator[int, None, int]:
        """Run one command that is done when ``travel`` says, given its start and its queue's end.

        Yields its start, and takes its queue when it is resumed. Returns when it is done.
        """
        start = max([floor, self.queue[node.queue], *(self.ready[slot] for slot in node.reads)])
        yield start
        free = start + self.cost[node.site]  # type: ignore[operator]  # an int inside its loops
        self.queue[node.queue] = free
        done = travel(start, free)
        for slot in node.writes:
            self.ready[slot] = done
        if self.first[node.site] < 0:
            self.first[node.site] = start
        self.last[node.site] = max(self.last[node.site], done)
        return done


class SipQueues:
    """When the queues of all PEs of a SIP are free: programs of several parts share them."""

    def __init__(self, num_pes: int, begin_ps: int) -> None:
        self._free_ps = np.full((len(Queue), num_pes), begin_ps, dtype=np.int64)

    def free_ps(self, queue: Queue, pes: Array) -> int:
        """Return when a queue is free on all of ``pes``."""
        return int(self._free_ps[queue, pes].max())

    def take(self, queue: Queue, pes: Array, until_ps: int) -> None:
        """Occupy a queue on ``pes`` until a given time."""
        self._free_ps[queue, pes] = until_ps

    def on(self, pes: Array) -> list[int]:
        """Return when each queue is free on all of ``pes``, for programs that run in step."""
        numbers: list[int] = self._free_ps[:, pes].max(axis=1).tolist()
        return numbers

    def settle(self, pes: Array, used: Iterable[Queue], free_ps: Sequence[int]) -> None:
        """Update when the queues that were ``used`` are free, never to an earlier time."""
        for queue in used:
            now = self._free_ps[queue, pes]
            self._free_ps[queue, pes] = np.maximum(now, free_ps[queue])


# -- for how long -------------------------------------------------------------------------------

Needs = tuple[int, int, int, int]
"""Picoseconds on the PE's port, on its share of HBM, of the cache, and of links between cubes."""
_NOTHING: Needs = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What one load asks of every resource."""

    dims: tuple[int, ...]
    """Loops that it varies over, as dims, outermost first."""
    shape: tuple[int, ...]
    """Their trip counts."""
    needs: tuple[Needs, ...]
    """What each iteration of these loops needs, or a single entry where all are alike."""

    @classmethod
    def of(cls, dims: tuple[int, ...], shape: tuple[int, ...], needs: Sequence[Needs]) -> Load:
        """Return the load that asks ``needs`` in its iterations, the outermost loop's first."""
        if len(set(needs)) > 1:
            return cls(dims, shape, tuple(needs))
        return cls((), (), (*needs[:1],) or (_NOTHING,))


def on_port_ps(issue_ps: int, port_ps: int) -> int:
    """Return how long a command occupies its queue if it waits only for the PE's port."""
    return issue_ps + port_ps


@dataclass(frozen=True, slots=True, eq=False)
class Overlapped:
    """How long a load occupies its queue while other loads are in flight."""

    occupancy: Cost
    varies: tuple[int, ...]
    """Loops (by id, outermost first) that index the occupancy."""
    total_ps: int
    """The time of all ``iterations``, without what issuing them takes."""
    iterations: int = 1

    def busy_ps(self, count: int, issue_ps: int) -> int:
        """Return how long a program that runs it ``count`` times occupies the queue."""
        return issue_ps * count + self.total_ps * (count // self.iterations)


def overlapped(loads: Sequence[Load], loops: Sequence[Loop], issue_ps: int) -> list[Overlapped]:
    """Return what each of the loads of one body takes, inside ``loops``.

    Issuing them stays one after the other.
    """
    used = {dim for load in loads for dim in load.dims}
    if not used:
        totals = _NOTHING
        before, result = 0, []
        for load in loads:
            port, hbm, cache, between = load.needs[0]
            totals = (totals[0] + port, totals[1] + hbm, totals[2] + cache, totals[3] + between)
            end = max(totals)
            result.append(Overlapped(issue_ps + end - before, (), end - before))
            before = end
        return result
    dims = [dim for dim in (loop_dim(loop.loop_id) for loop in loops) if dim in used]
    needs = np.broadcast_arrays(*(_aligned(load, dims) for load in loads))
    ends = np.cumsum(needs, axis=0).max(axis=-1)
    return [_as_cost(item, dims, issue_ps) for item in np.diff(ends, axis=0, prepend=0)]


def _aligned(load: Load, dims: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return its needs with an axis for every one of ``dims``, and one for the resources."""
    lengths = dict(zip(load.dims, load.shape, strict=True))
    shape = (*(lengths.get(dim, 1) for dim in dims), len(load.needs[0]))
    return np.array(load.needs, dtype=np.int64).reshape(shape)


def _as_cost(taken: npt.NDArray[np.int64], dims: Sequence[int], issue_ps: int) -> Overlapped:
    first = int(taken.flat[0])
    if (taken == first).all():
        return Overlapped(issue_ps + first, (), first)
    nested = _nested((taken + issue_ps).tolist())
    return Overlapped(nested, tuple(dim - 1 for dim in dims), int(taken.sum()), taken.size)


def _nested(costs: list[object] | int) -> Cost:
    if isinstance(costs, list):
        return tuple(_nested(cost) for cost in costs)  # type: ignore[arg-type]
    return costs
