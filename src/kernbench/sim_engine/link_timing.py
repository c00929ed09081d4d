"""When every transfer of a collective starts and ends, by two ways that agree where both apply.

The rules, for a transfer of step ``s`` from rank ``a`` to rank ``b``:

- It is issued when ``a`` has taken in what earlier rounds sent to it, all that ``a`` sent in
  earlier rounds has left ``a``, and both have entered the collective. A round is a step and the
  concurrent ones after it. Entering costs the protocol's launch, later rounds its round time.
- A link carries one transfer at a time, in the order in which they were issued (ties: the earlier
  step first, then the lower rank). Over several links a transfer cuts through: a link passes bytes
  on as they come, so the slowest one counts once and all latencies add up.
- ``b`` takes its chunks in one after the other. That lasts at least as long as its HBM needs, and
  reducing costs ``REDUCE_TRAFFIC`` times the bytes. The protocol's step time comes on top of the
  latency. What the switch adds is not taken in.
- After its last transfer a rank spends the protocol's tail, and combines the slots of a fold.
- An empty chunk is only a signal: it takes the latency of its route, and neither waits for a link
  nor holds one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from kernbench.collectives import Part
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
    entered = starts_ps + plan.entry_ps
    taken, left = entered.copy(), entered.copy()
    free = np.append(free_ps, 0)
    busy = np.zeros(plan.num_links + 1, dtype=np.int64)
    num_sizes, sizes, no_link = len(plan.sizes), plan.sizes, plan.num_links
    some_empty = bool(sizes[0] == 0)
    begins = entered
    for number, step in enumerate(plan.schedule.steps):
        wires = plan.wires(step)
        src, dst = wires.src, wires.dst
        size = plan.sizes_of(step)
        if not step.concurrent:
            begins = np.maximum(taken, left)
            if number:
                begins += plan.round_ps
        issued = np.maximum(begins[src], entered[dst])
        leaves = issued
        head = tail = issued + wires.ahead_ps
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
        left[src] = np.maximum(left[src], leaves)
        head = np.maximum(head + plan.step_ps, taken[dst])
        tail = tail + plan.step_ps
        if step.part != "up":
            tail = np.maximum(tail, head + plan.memory_ps[step.reduce][dst * num_sizes + size])
        tail = np.maximum(tail, head)
        taken[dst] = tail
        if trail is not None:
            trail.intake(number, step.chunk, dst, src, size, head, tail, step.reduce)
    return Timing(np.maximum(taken, left) + plan.exit_ps, free[:-1], busy[:-1])


def run_in_order_of_issue(
    plan: LinkPlan, starts_ps: Times, free_ps: Times, trail: Trail | None = None
) -> Timing:
    """Time one transfer after the other, in the order in which they are issued."""
    run = _Run(plan, starts_ps.tolist(), free_ps.tolist(), trail)
    while run.ready:
        issued, _, rank, send = heapq.heappop(run.ready)
        run.transfer(issued, rank, send)
    ends = [max(taken[-1], left) for taken, left in zip(run.taken, run.left, strict=True)]
    return Timing(
        np.array(ends, dtype=np.int64) + plan.exit_ps,
        np.array(run.free, dtype=np.int64),
        np.array(run.busy, dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Send:
    """A transfer of a rank; ``place`` counts the receives of ``dst`` in earlier steps."""

    step: int
    dst: int
    chunk: int
    size: int
    reduce: bool
    part: Part
    place: int


@dataclass(frozen=True, slots=True)
class _Round:
    """What a rank sends in one round, in the order of the steps."""

    first: bool
    """Whether it is the first round of the schedule."""
    after: int
    """How many receives of the rank come before it."""
    sends: list[_Send]


def _programs(plan: LinkPlan) -> list[list[_Round]]:
    """Return the rounds in which every rank sends, in order."""
    ranks = range(plan.schedule.num_ranks)
    rounds: list[list[_Round]] = [[] for _ in ranks]
    newest = [-1 for _ in ranks]
    num_received = [0 for _ in ranks]
    received_before = num_received
    begun = 0
    for number, step in enumerate(plan.schedule.steps):
        if not step.concurrent:
            received_before, begun = num_received.copy(), number
        places = num_received.copy()
        columns = (step.src, step.dst, step.chunk, plan.sizes_of(step))
        for src, dst, chunk, size in zip(*(each.tolist() for each in columns), strict=True):
            if newest[src] != begun:
                newest[src] = begun
                rounds[src].append(_Round(begun == 0, received_before[src], []))
            send = _Send(number, dst, chunk, size, step.reduce, step.part, places[dst])
            rounds[src][-1].sends.append(send)
            num_received[dst] += 1
    return rounds


class _Run:
    """The state of :func:`run_in_order_of_issue`."""

    def __init__(
        self, plan: LinkPlan, starts: list[int], free: list[int], trail: Trail | None
    ) -> None:
        self.plan = plan
        self.entered = [start + plan.entry_ps for start in starts]
        self.trail = trail
        self.free = free
        self.busy = [0] * len(free)
        self.left = self.entered.copy()
        self.taken = [[start] for start in self.entered]
        """Per rank, when it had taken in its first 0, 1, 2, ... chunks."""
        self.ready: list[tuple[int, int, int, _Send]] = []
        """Transfers that can be issued, as (time, step, sender, transfer)."""
        self._rounds = [iter(rounds) for rounds in _programs(plan)]
        self._next: list[_Round | None] = [next(rounds, None) for rounds in self._rounds]
        # How many transfers of a rank are queued and not carried out.
        self._queued = [0] * len(starts)
        self._arrived: list[dict[int, tuple[int, int, int, _Send]]] = [{} for _ in starts]
        self._wire = plan.wire_ps.reshape(plan.num_links + 1, -1).tolist()
        self._latency = plan.link_latency_ps.tolist()
        self._memory = [table.reshape(len(starts), -1).tolist() for table in plan.memory_ps]
        self._empty = (plan.sizes == 0).tolist()
        for rank in range(len(starts)):
            self._queue(rank)

    def transfer(self, issued: int, rank: int, send: _Send) -> None:
        """Carry out a transfer of ``rank``, and queue what it made possible."""
        leaves, head, tail = self._travel(issued, rank, send)
        self.left[rank] = max(self.left[rank], leaves)
        self._queued[rank] -= 1
        self._queue(rank)
        self._arrived[send.dst][send.place] = (head, tail, rank, send)
        self._take_in(send.dst)

    def _travel(self, issued: int, rank: int, send: _Send) -> tuple[int, int, int]:
        """Return when it left the sender, and when its head and its tail arrive."""
        leg = (rank, send.dst, send.part)
        leaves = issued
        head = tail = issued + self.plan.leg_latency_ps[leg]
        empty = self._empty[send.size]
        for hop, link in enumerate(self.plan.routes[leg]):
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
            head = max(head + self.plan.step_ps, taken[-1])
            memory = self._memory[send.reduce][rank][send.size] if send.part != "up" else 0
            tail = max(tail + self.plan.step_ps, head + memory)
            taken.append(tail)
            if self.trail is not None:
                where = (send.step, send.chunk, rank, src, send.size)
                self.trail.intake_rows.append((*where, head, tail, send.reduce))
        self._queue(rank)

    def _queue(self, rank: int) -> None:
        """Queue the next round of ``rank`` if all that it waits for is known."""
        following = self._next[rank]
        if following is None or self._queued[rank] or len(self.taken[rank]) <= following.after:
            return
        self._queued[rank] = len(following.sends)
        self._next[rank] = next(self._rounds[rank], None)
        begins = max(self.taken[rank][following.after], self.left[rank])
        if not following.first:
            begins += self.plan.round_ps
        for send in following.sends:
            issued = max(begins, self.entered[send.dst])
            heapq.heappush(self.ready, (issued, send.step, rank, send))
