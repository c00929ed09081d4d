"""When every transfer of a collective starts and ends.

The rules, for a transfer from rank ``a`` to rank ``b``:

- It is issued when ``a`` has taken in what earlier rounds sent to it, all that ``a`` sent in
  earlier rounds has left ``a``, and both have entered the collective. A round is a step and the
  concurrent ones after it. Entering costs the protocol's launch, later rounds its round time.
- A link carries one transfer at a time: those of earlier rounds first, of a round those first for
  which it is an earlier link of their route, and of these who arrives first (ties: who the
  schedule names first). Over several links a transfer cuts through: a link passes bytes on as they
  come, so the slowest one counts once and all latencies add up.
- ``b`` takes its chunks in one after the other, in the order of the steps. That lasts at least as
  long as its HBM needs, and reducing costs ``REDUCE_TRAFFIC`` times the bytes. The protocol's step
  time comes on top of the latency. What the switch adds is not taken in.
- Where ranks hand on pieces (``Schedule.pipelined``), all this is of the first piece of a chunk.
  The rest follows behind, and takes as long as the link or the memory that has most of it.
- A link between switches (``scale_out.leaves``) carries what many ports send, in pieces of all of
  them: the first piece passes at once, the last when the link has done all work so far. To later
  collectives it is free when it could have done the work of this one without a pause.
- After its last transfer a rank spends the protocol's tail, and combines the slots of a fold.
- An empty chunk is only a signal: it takes the latency of its route, and neither waits for a link
  nor holds one.

So what a link does in a round follows from the rounds and hops before it, and all links are worked
out at once (``link_queue``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from kernbench.links.routed_schedule import LinkPlan, Round
from kernbench.links.servers import in_order_of_arrival, serve
from kernbench.links.trail import Trail
from kernbench.links.wires import Positions, RouteHop, Times

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """Times relative to an arbitrary origin, which is that of what went in."""

    ends_ps: Times
    """When each rank is done."""
    free_ps: Times
    """When each link of the plan is free again."""
    busy_ps: Times
    """How long each link of the plan was occupied."""


@overload
def run_on_links(
    plan: LinkPlan, starts_ps: Times, free_ps: Times, trail: Trail | None = None
) -> Timing: ...


@overload
def run_on_links(
    plan: LinkPlan, starts_ps: Times, free_ps: Times, *, limit_ps: int | None
) -> Timing | None: ...


def run_on_links(
    plan: LinkPlan,
    starts_ps: Times,
    free_ps: Times,
    trail: Trail | None = None,
    limit_ps: int | None = None,
) -> Timing | None:
    """Return the timing of ``plan`` for ranks that enter and links that are free at given times.

    No time may be negative. With a limit, None as soon as some rank is known to end later.
    """
    run = _Run(plan, starts_ps, free_ps, trail)
    for item in plan.rounds():
        run.carry_out(item)
        if limit_ps is not None and run.so_far_ps() > limit_ps:
            return None
    timing = run.timing()
    over = limit_ps is not None and timing.ends_ps.max(initial=0) > limit_ps
    return None if over else timing


class _Alike(NamedTuple):
    """What a transfer and its next link have in common with all others.

    On a ring where all do the same this holds for hundreds of hops, and is much less work.
    """

    head_ps: int
    tail_ps: int
    free_ps: int


class _Run:
    """The state of all ranks and links between two rounds."""

    def __init__(
        self, plan: LinkPlan, starts_ps: Times, free_ps: Times, trail: Trail | None
    ) -> None:
        self._plan, self._trail = plan, trail
        self._entered = starts_ps + plan.entry_ps
        self._taken, self._left = self._entered.copy(), self._entered.copy()
        self._begins = self._entered
        self._free = plan.lanes.together(free_ps)
        self._free_before = free_ps
        leaf = plan.links >= plan.machine.first_leaf_link
        self._leaf: Flags | None = leaf if leaf.any() else None
        self._busy = np.zeros(plan.num_links, dtype=np.int64)
        latencies = np.unique(plan.link_latency_ps)
        self._latency_ps = int(latencies[0]) if len(latencies) == 1 else None
        self._some_empty = bool(plan.sizes[0] == 0)
        self._links_alike = (
            self._latency_ps is not None
            and len(plan.sizes) == 1
            and not self._some_empty
            and bool((plan.wire_ps == plan.wire_ps[0]).all())
        )

    def timing(self) -> Timing:
        ends = np.maximum(self._taken, self._left) + self._plan.exit_ps
        plan, free, busy = self._plan, self._free, self._busy
        if plan.rest is not None:
            # It moves behind the first pieces, at the pace of what has most to do.
            ends = ends + plan.rest.longest_ps
            busy = busy + plan.rest.busy_ps
            free = np.where(plan.rest.busy_ps > 0, free + plan.rest.longest_ps, free)
        free = self._shared(free, busy)
        return Timing(ends, plan.lanes.together(free), plan.lanes.together(busy))

    def _shared(self, free: Times, busy: Times) -> Times:
        """Return when links are free, those between switches when their work could be done."""
        if self._leaf is None:
            return free
        began = np.maximum(self._free_before, int(self._entered.min(initial=0)))
        return np.where(self._leaf & (busy > 0), began + busy, free)

    def so_far_ps(self) -> int:
        """Return a time before which the last rank does not end."""
        return int(max(self._taken.max(initial=0), self._left.max(initial=0)))

    def carry_out(self, item: Round) -> None:
        """Time all transfers of a round."""
        wires, plan = item.wires, self._plan
        if item.waits:
            self._begins = np.maximum(self._taken, self._left)
            if item.first:
                self._begins += plan.round_ps
        issued = np.maximum(self._begins[wires.src], self._entered[wires.dst])
        leaves = issued.copy()
        if wires.ahead_ps is not None:
            issued += wires.ahead_ps
        head, tail = issued, issued.copy()
        self._travel(item, head, tail, leaves)
        if wires.by_receiver is None:
            self._left[wires.src] = np.maximum(self._left[wires.src], leaves)
        else:
            np.maximum.at(self._left, wires.src, leaves)
        self._take_in(item, head + plan.step_ps, tail + plan.step_ps)

    def _travel(self, item: Round, head: Times, tail: Times, leaves: Times) -> None:
        """Move the transfers of a round over all their links; the times change in place."""
        signals = self._plan.sizes[item.sizes] == 0 if self._some_empty else None
        at_second = item.wires.at_second
        alike = self._all_alike(head, tail)
        for number, hop in enumerate(item.hops):
            if alike is not None:
                if hop.takes_all:
                    alike = self._pass_alike(alike)
                    if number == 0:
                        leaves[:] = alike.free_ps
                    continue
                head[:], tail[:], self._free[:] = alike
                alike = None
            if signals is not None and signals.any():
                hop = self._let_signals_pass(item, hop, signals, head, tail)
            who: Positions | slice = slice(None) if hop.who is None else hop.who
            end = self._pass(item, hop, who, head, tail)
            if number == 0:
                leaves[who] = end
            elif number == 1 and at_second is not None:
                ends = leaves.copy()
                ends[who] = end
                leaves[at_second] = ends[at_second]
        if alike is not None:
            head[:], tail[:], self._free[:] = alike

    def _all_alike(self, head: Times, tail: Times) -> _Alike | None:
        """Return the state of any transfer and link if all have the same."""
        if self._trail is not None or not self._links_alike or not len(head):
            return None
        states = [head, tail, self._free]
        if any(state[0] != state[-1] or (state != state[0]).any() for state in states):
            return None
        return _Alike(*(int(state[0]) for state in states))

    def _pass_alike(self, alike: _Alike) -> _Alike:
        """Move one transfer over each link, all transfers being alike."""
        assert self._latency_ps is not None
        begin = max(alike.head_ps, alike.free_ps)
        wire = int(self._plan.wire_ps[0])
        end = max(begin + wire, alike.tail_ps)
        self._busy += wire
        return _Alike(begin + self._latency_ps, end + self._latency_ps, end)

    def _let_signals_pass(
        self, item: Round, hop: RouteHop, signals: Flags, head: Times, tail: Times
    ) -> RouteHop:
        """Move empty chunks over a hop, and return the hop of the others."""
        who = np.arange(len(signals)) if hop.who is None else hop.who
        empty = signals[who]
        silent, links = who[empty], hop.links[empty]
        if self._trail is not None:
            self._trail.hop(item, silent, links, head[silent], tail[silent], 0)
        head[silent] += self._plan.link_latency_ps[links]
        tail[silent] += self._plan.link_latency_ps[links]
        links = hop.links[~empty]
        counts = np.bincount(links, minlength=self._plan.num_links)
        return RouteHop(who[~empty], links, counts, hop.crowded, takes_all=False)

    def _pass(
        self, item: Round, hop: RouteHop, who: Positions | slice, head: Times, tail: Times
    ) -> Times:
        """Move transfers over a link each, and return when each has left for it."""
        links, plan = hop.links, self._plan
        first, last = head[who], tail[who]
        # Most messages split evenly: then a link takes as long for every transfer.
        if len(plan.sizes) == 1:
            wire = plan.wire_ps[links]
            self._busy += hop.counts * plan.wire_ps
        else:
            wire = plan.wire_ps[links * len(plan.sizes) + item.sizes[who]]
            np.add.at(self._busy, links, wire)
        # Work on a shared link is done at its rate, without waiting for the tail.
        shared = None if self._leaf is None else self._leaf[links]
        ahead = last if shared is None else np.where(shared, 0, last)
        if hop.crowded and len(links):
            order = in_order_of_arrival(links, first)
            begin, end = serve(links, order, wire, first, ahead, self._free)
        else:
            begin = np.maximum(first, self._free[links])
            end = np.maximum(begin + wire, ahead)
            self._free[links] = end
        if shared is not None:
            begin, end = np.where(shared, first, begin), np.maximum(end, last)
        if self._trail is not None:
            self._trail.hop(item, who, links, begin, end, wire)
        latency = plan.link_latency_ps[links] if self._latency_ps is None else self._latency_ps
        head[who] = begin + latency
        tail[who] = end + latency
        return end

    def _take_in(self, item: Round, head: Times, tail: Times) -> None:
        """Time the receivers' intake of what has arrived."""
        dst, taken = item.wires.dst, self._taken
        if item.wires.by_receiver is None:
            begin = np.maximum(head, taken[dst])
            end = np.maximum(begin + item.memory_ps, tail)
            taken[dst] = end
        elif len(dst):
            begin, end = serve(dst, item.wires.by_receiver, item.memory_ps, head, tail, taken)
        if self._trail is not None:
            self._trail.intake(item, begin, end)
