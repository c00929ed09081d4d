"""HBM in time: whatever runs on a SIP at the same moment shares its bandwidth (ADR-0036).

A command or a rank's part in a collective asks for a constant share of its SIP's HBM, its *demand*:
the HBM time of its bytes over the time that it takes alone. While the demands on a SIP add up to
more than the whole, everything there runs slower by that factor; a collective runs at the pace of
its slowest SIP. So nothing is faster than alone, and together nothing takes longer than one after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from simpy import Event

from kernbench.clock.handles import Handle
from kernbench.clock.simulation import Simulation

WHOLE = 64
"""A SIP's HBM bandwidth in units of demand."""


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


class Flow:
    """Shares that run at one pace: those of a collective, or a single one of a kernel.

    Whose ends are ``known`` slows others down, and is not slowed down itself.
    """

    def __init__(self, shares: Sequence[Share], now_ps: int, *, known: bool = False) -> None:
        self.shares = shares
        self._known = known
        self.running = {share: None for share in shares if share.demand}
        self.on_delay: Callable[[int], None] | None = None
        """Told by how much later (or sooner, below 0) than was known the last share ends."""
        self._load = WHOLE
        self._done_ps = 0
        self._since_ps = now_ps

    def go_on(self, load: int, now_ps: int) -> dict[Event, int]:
        """Run under a load from now on; return the new ends of the handles that move."""
        load = max(load, WHOLE)
        if load == self._load or self._known:
            return {}
        self._done_ps += (now_ps - self._since_ps) * WHOLE // self._load
        self._since_ps, self._load = now_ps, load
        moved: dict[Event, int] = {}
        last_ps = max(share.end_ps for share in self.shares)
        for share in self.shares:
            if share.end_ps > now_ps:
                left_ps = max(share.work_ps - self._done_ps, 0)
                share.end_ps = now_ps - (-left_ps * load // WHOLE)
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
    """Work in progress on the SIPs of a run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._loads: dict[int, int] = {}
        self._flows: dict[int, dict[Flow, int]] = {}
        """The flows on each SIP, and how many shares they have there."""
        self._alone: dict[int, _Alone] = {}
        """What began last on each SIP while nothing else was in progress, until something joins
        it."""
        self._unsettled: dict[Flow, None] = {}
        self._planners: dict[int, Planner] = {}

    def is_idle(self, sip_id: int) -> bool:
        """Return whether nothing that uses HBM is in progress on a SIP."""
        return not self._flows.get(sip_id) and self._is_free(sip_id)

    def _is_free(self, sip_id: int) -> bool:
        alone = self._alone.get(sip_id)
        if alone is None:
            return True
        handle, hbm_ps, duration_ps, _ = alone
        return handle.callbacks is None or not demand_of(hbm_ps, duration_ps)

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
            here = self._flows.setdefault(share.sip_id, {})
            here[flow] = here.get(flow, 0) + 1
            self._change(flow, share.sip_id, share.demand)
            share.handle.before_waiters(_Ended(self, flow, share))

    def begin_alone(self, handle: Handle, sip_id: int, hbm_ps: int, duration_ps: int) -> None:
        """Begin work on one SIP now, which ends in ``duration_ps`` if it is alone."""
        now_ps = self._simulation.now_ps
        if sip_id not in self._planners and self.is_idle(sip_id):
            # Mostly nothing joins it. Then this is all there is to do.
            self._alone[sip_id] = handle, hbm_ps, duration_ps, now_ps
            return
        flow = _flow_of(handle, sip_id, hbm_ps, duration_ps, now_ps)
        if flow is not None:
            self.begin(flow)

    def _join(self, sip_id: int) -> None:
        """Turn the work that was alone on a SIP so far into a flow."""
        handle, *rest = self._alone.pop(sip_id)
        if handle.callbacks is not None:
            flow = _flow_of(handle, sip_id, *rest)
            if flow is not None:
                self.begin(flow)

    def end(self, flow: Flow, share: Share) -> None:
        """Remove a share that has ended."""
        del flow.running[share]
        here = self._flows[share.sip_id]
        here[flow] -= 1
        if not here[flow]:
            del here[flow]
        self._change(flow, share.sip_id, -share.demand)

    def _change(self, flow: Flow, sip_id: int, demand: int) -> None:
        before = self._loads.get(sip_id, 0)
        self._loads[sip_id] = after = before + demand
        if max(before, after) > WHOLE:
            if not self._unsettled:
                # What else happens at this time comes first.
                self._simulation.call_soon(self._settle)
            self._unsettled.update(dict.fromkeys((flow, *self._flows[sip_id])))

    def _settle(self) -> None:
        """Find the pace of all flows that something has changed for."""
        unsettled, self._unsettled = self._unsettled, {}
        now_ps = self._simulation.now_ps
        moved: dict[Event, int] = {}
        for flow in unsettled:
            loads = [self._loads[share.sip_id] for share in flow.running]
            moved |= flow.go_on(max(loads, default=WHOLE), now_ps)
        self._simulation.move(moved)


_Alone = tuple[Handle, int, int, int]
"""Its handle, its HBM time, how long it takes, and when it began."""


def _flow_of(
    handle: Handle, sip_id: int, hbm_ps: int, duration_ps: int, start_ps: int
) -> Flow | None:
    """Return the flow of work on one SIP, None if it uses no HBM."""
    demand = demand_of(hbm_ps, duration_ps)
    if not demand:
        return None
    share = Share(sip_id, demand, handle, duration_ps, start_ps + duration_ps)
    return Flow([share], start_ps)


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """Called when a share's handle ends, before anyone who waits for it."""

    sharing: HbmSharing
    flow: Flow
    share: Share

    def __call__(self, _: Event) -> None:
        self.sharing.end(self.flow, self.share)
