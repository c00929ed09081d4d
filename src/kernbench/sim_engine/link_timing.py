"""When every transfer of a collective starts and ends, by two ways that agree where both apply.

The rules, for a transfer of step ``s`` from rank ``a`` to rank ``b``:

- It is issued when ``a`` has taken in what earlier steps sent to it, the last thing that ``a``
  sent has left ``a``, and both have entered the collective.
- A link carries one transfer at a time, in the order in which they were issued (ties: the lower
  rank first). Over several links a transfer cuts through: a link passes bytes on as they come, so
  the slowest one counts once and all latencies add up.
- ``b`` takes its chunks in one after the other. That lasts at least as long as its HBM needs, and
  reducing costs ``REDUCE_TRAFFIC`` times the bytes.
- An empty chunk is only a signal: it takes the latency of its route, and neither waits for a link
  nor holds one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from kernbench.sim_engine.link_plan import LinkPlan, Times
from kernbench.sim_engine.link_trail import Trail


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """Times relative to an arbitrary origin, which is that of what went in."""

    ends_ps: Times
    """When each rank is done."""
    free_ps: Times
    """When each link of the plan is free again."""
    busy_ps: Times
    """How long each link of the plan was occupied."""


def run_on_links(
    plan: LinkPlan, starts_ps: Times, free_ps: Times, trail: Trail | None = None
) -> Timing:
    """Return the timing of ``plan`` for ranks that enter and links that are free at given times.

    No time may be negative.
    """
    if plan.is_shared and not plan.is_empty:
        return run_in_order_of_issue(plan, starts_ps, free_ps, trail)
    return run_in_order_of_steps(plan, starts_ps, free_ps, trail)


def run_in_order_of_steps(
    plan: LinkPlan, starts_ps: Times, free_ps: Times, trail: Trail | None = None
) -> Timing:
    """Time all transfers of a step at once.

    Only right where every link serves one pair of ranks: then the transfers on it are issued in
    the order of the steps, whatever happens elsewhere.
    """
    taken = starts_ps.copy()
    left = starts_ps.copy()
    free = np.append(free_ps, 0)
    busy = np.zeros(plan.num_links + 1, dtype=np.int64)
    num_sizes, sizes, no_link = len(plan.sizes), plan.sizes, plan.num_links
    some_empty = bool(sizes[0] == 0)
    for number, step in enumerate(plan.schedule.steps):
        wires = plan.wires(step)
        src, dst = wires.src, wires.dst
        size = plan.size_of_chunk[step.chunk]
        issued = np.maximum(np.maximum(taken[src], left[src]), starts_ps[dst])
        leaves = issued
        head = tail = issued
        for hop, links in enumerate(wires.hops):
            wire = plan.wire_ps[links * num_sizes + size]
            begin = np.maximum(head, free[links])
            end = begin + wire
            if hop:
                end = np.maximum(end, tail)
            if some_empty:
                empty = sizes[size] == 0
                begin = np.where(empty, head, begin)
                end = np.where(empty, tail, end)
                free[links] = np.where(empty, free[links], end)
            else:
                free[links] = end
            # Routes that have ended wait here; the place must not keep a time.
            free[no_link] = 0
            busy[links] += wire
            if hop == 0:
                leaves = end
            if trail is not None:
                trail.hop(number, step.chunk, src, dst, size, links, begin, end, wire)
            latency = plan.link_latency_ps[links]
            head, tail = begin + latency, end + latency
        if not wires.hops:
            head = tail = issued + wires.latency_ps
        left[src] = leaves
        head = np.maximum(head, taken[dst])
        tail = np.maximum(tail, head + plan.memory_ps[step.reduce][dst * num_sizes + size])
        taken[dst] = tail
        if trail is not None:
            trail.intake(number, step.chunk, dst, src, size, head, tail, step.reduce)
    return Timing(np.maximum(taken, left), free[:-1], busy[:-1])


def run_in_order_of_issue(
    plan: LinkPlan, starts_ps: Times, free_ps: Times, trail: Trail | None = None
) -> Timing:
    """Time one transfer after the other, in the order in which they are issued."""
    run = _Run(plan, starts_ps.tolist(), free_ps.tolist(), trail)
    while run.ready:
        issued, rank = heapq.heappop(run.ready)
        run.transfer(issued, rank)
    ends = [max(taken[-1], left) for taken, left in zip(run.taken, run.left, strict=True)]
    return Timing(
        np.array(ends, dtype=np.int64),
        np.array(run.free, dtype=np.int64),
        np.array(run.busy, dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Send:
    """A rank's next transfer; ``place`` counts the receives of ``dst`` in earlier steps."""

    step: int
    dst: int
    chunk: int
    size: int
    reduce: bool
    after: int
    """How many receives of the sender come before it."""
    place: int


def _programs(plan: LinkPlan) -> list[list[_Send]]:
    """Return what every rank sends, in order."""
    ranks = range(plan.schedule.num_ranks)
    sends: list[list[_Send]] = [[] for _ in ranks]
    num_received = [0 for _ in ranks]
    sizes = plan.size_of_chunk.tolist()
    for number, step in enumerate(plan.schedule.steps):
        before = num_received.copy()
        moves = zip(step.src.tolist(), step.dst.tolist(), step.chunk.tolist(), strict=True)
        for src, dst, chunk in moves:
            sends[src].append(
                _Send(number, dst, chunk, sizes[chunk], step.reduce, before[src], before[dst])
            )
            num_received[dst] += 1
    return sends


class _Run:
    """The state of :func:`run_in_order_of_issue`."""

    def __init__(
        self, plan: LinkPlan, starts: list[int], free: list[int], trail: Trail | None
    ) -> None:
        self.plan = plan
        self.starts = starts
        self.trail = trail
        self.free = free
        self.busy = [0] * len(free)
        self.left = starts.copy()
        self.taken = [[start] for start in starts]
        """Per rank, when it had taken in its first 0, 1, 2, ... chunks."""
        self.ready: list[tuple[int, int]] = []
        """Transfers that can be issued, as (time, sender): at most one per rank."""
        self._sends = [iter(sends) for sends in _programs(plan)]
        self._next: list[_Send | None] = [next(sends, None) for sends in self._sends]
        self._queued = [False] * len(starts)
        self._arrived: list[dict[int, tuple[int, int, int, _Send]]] = [{} for _ in starts]
        self._wire = plan.wire_ps.reshape(plan.num_links + 1, -1).tolist()
        self._latency = plan.link_latency_ps.tolist()
        self._memory = [table.reshape(len(starts), -1).tolist() for table in plan.memory_ps]
        self._empty = (plan.sizes == 0).tolist()
        for rank in range(len(starts)):
            self._queue(rank)

    def transfer(self, issued: int, rank: int) -> None:
        """Carry out the next transfer of ``rank``, and queue what it made possible."""
        send = self._next[rank]
        assert send is not None
        leaves, head, tail = self._travel(issued, rank, send)
        self.left[rank] = leaves
        self._next[rank] = next(self._sends[rank], None)
        self._queued[rank] = False
        self._queue(rank)
        self._arrived[send.dst][send.place] = (head, tail, rank, send)
        self._take_in(send.dst)

    def _travel(self, issued: int, rank: int, send: _Send) -> tuple[int, int, int]:
        """Return when it left the sender, and when its head and its tail arrive."""
        leaves = head = tail = issued
        empty = self._empty[send.size]
        for hop, link in enumerate(self.plan.routes[rank, send.dst]):
            wire = self._wire[link][send.size]
            begin, end = head, tail
            if not empty:
                begin = max(head, self.free[link])
                end = max(begin + wire, tail) if hop else begin + wire
                self.free[link] = end
                self.busy[link] += wire
            if hop == 0:
                leaves = end
            if self.trail is not None:
                where = (send.step, send.chunk, rank, send.dst, send.size)
                self.trail.hop_rows.append((*where, link, begin, end, wire))
            head, tail = begin + self._latency[link], end + self._latency[link]
        return leaves, head, tail

    def _take_in(self, rank: int) -> None:
        """Let ``rank`` take in, in the order of the steps, what has been sent to it."""
        taken, arrived = self.taken[rank], self._arrived[rank]
        while len(taken) - 1 in arrived:
            head, tail, src, send = arrived.pop(len(taken) - 1)
            head = max(head, taken[-1])
            tail = max(tail, head + self._memory[send.reduce][rank][send.size])
            taken.append(tail)
            if self.trail is not None:
                where = (send.step, send.chunk, rank, src, send.size)
                self.trail.intake_rows.append((*where, head, tail, send.reduce))
        self._queue(rank)

    def _queue(self, rank: int) -> None:
        """Queue the next transfer of ``rank`` if all that it waits for is known."""
        send = self._next[rank]
        if send is None or self._queued[rank] or len(self.taken[rank]) <= send.after:
            return
        self._queued[rank] = True
        issued = max(self.taken[rank][send.after], self.left[rank], self.starts[send.dst])
        heapq.heappush(self.ready, (issued, rank))
