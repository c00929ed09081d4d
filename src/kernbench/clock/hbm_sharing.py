"""HBM and power in time: what runs on a SIP at the same moment shares them (ADR-0036, 0285).

A command or a rank's part in a collective asks for a constant share of its SIP's HBM, its *demand*:
the HBM time of its bytes over the time that it takes alone. While the demands on a SIP add up to
more than the whole, everything there runs slower by that factor; a collective runs at the pace of
its slowest SIP. So nothing is faster than alone, and together nothing takes longer than one after
the other.

Where they would draw more than the SIP's limit, its clock falls: what a kernel computes takes
longer, and bytes on their way do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from simpy import Event

from kernbench.clock.handles import Handle
from kernbench.clock.simulation import Simulation
from kernbench.hardware import PowerSpec
from kernbench.op_log import Draw, Template, shared_clock

WHOLE = 64
"""A SIP's HBM bandwidth in units of demand."""
_FULL_PACE = WHOLE << 20
"""The pace of what nothing slows down; twice that is half as fast."""
NO_DRAW = Draw()


def demand_of(hbm_ps: int, duration_ps: int) -> int:
    """Return the share of HBM that a piece of work uses which takes ``duration_ps`` alone.

    >>> demand_of(25, 100)
    16
    """
    if not duration_ps:
        return 0
    return min((2 * WHOLE * hbm_ps + duration_ps) // (2 * duration_ps), WHOLE)


@dataclass(slots=True, eq=False)
class Share:
    """Work in progress on one SIP, until ``handle`` ends."""

    sip_id: int
    demand: int
    handle: Handle
    work_ps: int
    """How long it takes alone, from the start of its flow on."""
    end_ps: int
    """When it ends, as far as is known now."""
    draw: Draw = NO_DRAW


class Flow:
    """Shares that run at one pace: those of a collective, or a single one of a kernel.

    Whose ends are ``known`` slows others down, and is not slowed down itself.
    """

    def __init__(self, shares: Sequence[Share], now_ps: int, *, known: bool = False) -> None:
        self.shares = shares
        self._known = known
        self.running = {share: None for share in shares if share.demand or any(share.draw)}
        self.on_delay: Callable[[int], None] | None = None
        """Told by how much later (or sooner, below 0) than was known the last share ends."""
        self._pace = _FULL_PACE
        self._done_ps = 0
        self._since_ps = now_ps

    def go_on(self, pace: int, now_ps: int) -> dict[Event, int]:
        """Run at a pace from now on; return the new ends of the handles that move."""
        if pace == self._pace or self._known:
            return {}
        self._done_ps += (now_ps - self._since_ps) * _FULL_PACE // self._pace
        self._since_ps, self._pace = now_ps, pace
        moved: dict[Event, int] = {}
        last_ps = max(share.end_ps for share in self.shares)
        for share in self.shares:
            if share.end_ps > now_ps:
                left_ps = max(share.work_ps - self._done_ps, 0)
                share.end_ps = now_ps - (-left_ps * pace // _FULL_PACE)
                moved[share.handle] = share.end_ps
        delay_ps = max(share.end_ps for share in self.shares) - last_ps
        if self.on_delay is not None and delay_ps:
            self.on_delay(delay_ps)
        return moved


class Planner(Protocol):
    """An owner that has a SIP for itself, and has planned its work there ahead."""

    def cut(self) -> None:
        """Keep only what runs now of the plan, and begin it as a flow: it is no longer alone."""


class HbmSharing:
    """Work in progress on the SIPs of a run; ``power_of`` says what a SIP may draw."""

    def __init__(
        self, simulation: Simulation, power_of: Callable[[int], PowerSpec | None] = lambda _: None
    ) -> None:
        self._simulation = simulation
        self._power_of = power_of
        self._loads: dict[int, int] = {}
        self._shares: dict[int, dict[Share, Flow]] = {}
        """What runs on each SIP, and in which flow."""
        self._clocks: dict[int, float] = {}
        """The clocks of SIPs that lower theirs for what runs side by side."""
        self._alone: dict[int, _Alone] = {}
        """What began last on each SIP while nothing else was in progress, until something joins
        it."""
        self._unsettled: dict[Flow, None] = {}
        self._planners: dict[int, Planner] = {}

    def is_idle(self, sip_id: int) -> bool:
        """Return whether nothing that others slow down is in progress on a SIP."""
        return not self._shares.get(sip_id) and self._is_free(sip_id)

    def _is_free(self, sip_id: int) -> bool:
        alone = self._alone.get(sip_id)
        if alone is None:
            return True
        handle, template, _, _ = alone
        return handle.callbacks is None or not (template.hbm_ps or template.energy_pj)

    def plan(self, sip_id: int, planner: Planner | None) -> None:
        """Record who has planned ahead on a SIP, until something else begins there."""
        if planner is None:
            self._planners.pop(sip_id, None)
        else:
            self._planners[sip_id] = planner

    def begin(self, flow: Flow) -> None:
        """Begin a flow now; its handles are set to end as if it were alone."""
        for share in flow.running:
            planner = self._planners.pop(share.sip_id, None)
            if planner is not None:
                planner.cut()
            if share.sip_id in self._alone:
                self._join(share.sip_id)
            self._shares.setdefault(share.sip_id, {})[share] = flow
            self._change(flow, share.sip_id, share.demand)
            share.handle.before_waiters(_Ended(self, flow, share))

    def begin_alone(
        self, handle: Handle, sip_id: int, template: Template, duration_ps: int, start_ps: int
    ) -> None:
        """Begin work on one SIP, which takes ``duration_ps`` if it is alone."""
        if sip_id not in self._planners and self.is_idle(sip_id):
            # Mostly nothing joins it. Then this is all there is to do.
            self._alone[sip_id] = handle, template, duration_ps, start_ps
        else:
            self.begin(_flow_of(handle, sip_id, template, duration_ps, start_ps))

    def _join(self, sip_id: int) -> None:
        """Turn the work that was alone on a SIP so far into a flow."""
        handle, template, duration_ps, start_ps = self._alone.pop(sip_id)
        if handle.callbacks is not None:
            self.begin(_flow_of(handle, sip_id, template, duration_ps, start_ps))

    def end(self, flow: Flow, share: Share) -> None:
        """Remove a share that has ended."""
        del flow.running[share]
        del self._shares[share.sip_id][share]
        self._change(flow, share.sip_id, -share.demand)

    def _change(self, flow: Flow, sip_id: int, demand: int) -> None:
        before = self._loads.get(sip_id, 0)
        self._loads[sip_id] = after = before + demand
        clock_before, clock = self._clocks.get(sip_id, 1.0), self._clock(sip_id)
        if max(before, after) > WHOLE or min(clock_before, clock) < 1:
            if not self._unsettled:
                # What else happens at this time comes first.
                self._simulation.call_soon(self._settle)
            self._unsettled.update(dict.fromkeys((flow, *self._shares[sip_id].values())))

    def _clock(self, sip_id: int) -> float:
        """Return the clock at which a SIP's limit holds, relative to that of each work alone."""
        draws = tuple([share.draw for share in self._shares[sip_id]])
        clock = 1.0
        # Alone, work is held at the limit when its template is made.
        if len(draws) > 1 and any(draw.clocked_share for draw in draws):
            power = self._power_of(sip_id)
            if power is not None:
                clock = shared_clock(power, draws, max(self._loads[sip_id] / WHOLE, 1.0))
        self._clocks[sip_id] = clock
        return clock

    def _settle(self) -> None:
        """Find the pace of all flows that something has changed for."""
        unsettled, self._unsettled = self._unsettled, {}
        now_ps = self._simulation.now_ps
        moved: dict[Event, int] = {}
        for flow in unsettled:
            paces = [self._pace_of(share) for share in flow.running]
            moved |= flow.go_on(max(paces, default=_FULL_PACE), now_ps)
        self._simulation.move(moved)

    def _pace_of(self, share: Share) -> int:
        by_hbm = max(self._loads[share.sip_id], WHOLE) * (_FULL_PACE // WHOLE)
        clock = self._clocks[share.sip_id]
        return max(by_hbm, math.ceil(_FULL_PACE * share.draw.clocked_share / clock))


_Alone = tuple[Handle, "Template", int, int]
"""Its handle, what it does, how long it takes, and when it began."""


def _flow_of(
    handle: Handle, sip_id: int, template: Template, duration_ps: int, start_ps: int
) -> Flow:
    """Return the flow of work on one SIP."""
    demand, draw = demand_of(template.hbm_ps, duration_ps), template.draw(duration_ps)
    share = Share(sip_id, demand, handle, duration_ps, start_ps + duration_ps, draw)
    return Flow([share], start_ps)


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """Called when a share's handle ends, before anyone who waits for it."""

    sharing: HbmSharing
    flow: Flow
    share: Share

    def __call__(self, _: Event) -> None:
        self.sharing.end(self.flow, self.share)
