"""Times of collectives on the idle links of a machine, and lower bounds of them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from kernbench.collectives import Schedule, ScheduleKey
from kernbench.hardware import Machine, ProtocolSpec, transfer_ps
from kernbench.links.recent import Recent
from kernbench.links.routed_schedule import LinkPlan, build_link_plan
from kernbench.links.transfer_times import Timing, run_on_links

_PlanKey = tuple[ScheduleKey, str, tuple[int, ...]]

_MOST_PLANS = 64


class IdleTimes:
    """Plans on the links of one machine, and their timings; recent ones are remembered."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._plans: Recent[_PlanKey, LinkPlan] = Recent(_MOST_PLANS)
        self._timings: Recent[_PlanKey, Timing] = Recent(_MOST_PLANS)

    def plan(
        self, schedule: Schedule, sips: tuple[int, ...], name: str, protocol: ProtocolSpec
    ) -> LinkPlan:
        """Return a schedule laid on the links; ``name`` is that of the protocol.

        Raises:
            UsageError: The machine has no such SIP, or no switch that the schedule needs.
        """
        return self._plans.get(
            (schedule.key, name, sips),
            lambda: build_link_plan(schedule, self.machine, sips, protocol),
        )

    def timing(self, plan: LinkPlan, name: str, limit_ps: int | None = None) -> Timing | None:
        """Return the timing of a plan of :meth:`plan` whose ranks all enter at 0.

        With a limit, None if it takes longer than that.
        """
        key = (plan.schedule.key, name, tuple(plan.sips.tolist()))
        position = self._timings.find(key)
        if position is None:
            zeros = np.zeros(plan.schedule.num_ranks, dtype=np.int64)
            idle = np.zeros(plan.num_links, dtype=np.int64)
            position = run_on_links(plan, zeros, idle, limit_ps=limit_ps)
            if position is not None:
                self._timings.put(key, position)
        elif limit_ps is not None and position.ends_ps.max(initial=0) > limit_ps:
            return None
        return position


def least_ps(plan: LinkPlan) -> int:
    """Return a lower bound of the collective's time, in whatever order links serve.

    As if each transfer had the fastest link for itself, over the least latency; and what all send
    has to leave their SIPs.
    """
    num_sizes = len(plan.sizes)
    latency = int(plan.link_latency_ps.min(initial=0)) if plan.num_links else 0
    wire = np.zeros(num_sizes, dtype=np.int64)
    if plan.num_links:
        wire = plan.wire_ps.reshape(-1, num_sizes).min(axis=0)
    entered = np.full(plan.schedule.num_ranks, plan.entry_ps, dtype=np.int64)
    taken, left, begins = entered, entered, entered
    taken, left = taken.copy(), left.copy()
    for item in plan.rounds():
        src, dst = item.wires.src, item.wires.dst
        if item.waits:
            begins = np.maximum(taken, left) + (plan.round_ps if item.first else 0)
        leaves = begins[src] + wire[item.sizes]
        np.maximum.at(left, src, np.where(plan.sizes[item.sizes] > 0, leaves, begins[src]))
        if item.wires.ahead_ps is None and item.wires.not_taken_in is None:
            np.maximum.at(taken, dst, leaves + latency + plan.step_ps)
    return max(int((np.maximum(taken, left) + plan.exit_ps).max(initial=0)), _leaving_ps(plan))


def _leaving_ps(plan: LinkPlan) -> int:
    """Return the longest time that any SIP needs to send all its data."""
    if plan.lanes.are_shared:
        return 0
    links = plan.machine.links
    rates = dict.fromkeys(plan.sips.tolist(), Fraction(0))
    for link in plan.links.tolist():
        if links[link].src_sip in rates:
            rates[links[link].src_sip] += links[link].bandwidth_gbps
    sent = zip(plan.sips.tolist(), plan.schedule.sent_bytes().tolist(), strict=True)
    return max(
        (transfer_ps(size, rates[sip]) for sip, size in sent if size and rates[sip]), default=0
    )
