"""The links of a machine in virtual time: collectives, and the transfers that kernels make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kernbench.collectives import Schedule, ScheduleKey
from kernbench.commands import Engine
from kernbench.errors import InternalError
from kernbench.hardware import Link, Machine, transfer_ps
from kernbench.links.bookings import LinkBookings
from kernbench.links.recent import Recent
from kernbench.links.routed_schedule import LinkPlan, build_link_plan, span_gbps
from kernbench.links.selection import PLAIN, Selector
from kernbench.links.trail import Trail, build_rows
from kernbench.links.transfer_times import Timing, run_on_links
from kernbench.links.wires import Positions, Times
from kernbench.op_log import Column, Energy, Template, WorkCounts, pace_of, uncapped

_MOST_TIMINGS = 512
_TimingKey = tuple[ScheduleKey, str, tuple[int, ...], bytes, bytes]


@dataclass(frozen=True, slots=True)
class Transferred:
    """A collective that was placed in virtual time; one entry per rank of the group."""

    starts_ps: tuple[int, ...]
    ends_ps: tuple[int, ...]
    template: Template
    hbm_ps: tuple[int, ...]
    """HBM time of all that a rank reads and writes."""
    links: Positions
    """The links that are taken for longer than until the first start, by number."""
    free_ps: Times
    """When each of them is free again."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A transfer's time on one link."""

    link: int
    start_ps: int
    end_ps: int
    """When it has left the link's near end; the link's latency comes on top."""
    busy_ps: int


@dataclass(frozen=True, slots=True)
class Passage:
    """One transfer from SIP to SIP; on the same SIP it has no hops and takes no time."""

    head_ps: int
    """When its first byte arrives."""
    tail_ps: int
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Relative:
    """A timing relative to the earliest start, which every equal collective shares."""

    ends_ps: tuple[int, ...]
    template: Template
    hbm_ps: tuple[int, ...]
    links: Positions
    """The links that are taken for longer than until that start, by number."""
    free_ps: Times
    """When each of them is free again."""


class Network:
    """Runs collectives on the links of ``machine``.

    Collectives that meet on a link are served in the order in which they were handed to
    :meth:`run`: a later one takes the link when the earlier one is done with it for good.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # When each link of the machine is free.
        self._free_ps = np.zeros(len(machine.links), dtype=np.int64)
        self.selector = Selector(machine)
        self._timings: Recent[_TimingKey, _Relative] = Recent(_MOST_TIMINGS)
        self._bookings: dict[int, LinkBookings] = {}

    def latency_ps(self, src_sip: int, dst_sip: int) -> int:
        """Return what an empty signal takes; it neither waits for a link nor holds one."""
        links = self.machine.links
        return sum(links[index].latency_ps for index in self.machine.route(src_sip, dst_sip))

    def transfer(self, src_sip: int, dst_sip: int, size_bytes: int, at_ps: int) -> Passage:
        """Send bytes that are ready at ``at_ps``, in competition with all other traffic.

        Behind collectives, which have a link to themselves; what these leave free of it transfers
        share (:class:`LinkBookings`). Over several links it cuts through in small pieces, between
        those of others: that it queues for one link does not keep its first pieces from the next.
        """
        head = tail = at_ps
        hops: list[Hop] = []
        for index in self.machine.route(src_sip, dst_sip):
            link = self.machine.links[index]
            wire_ps = transfer_ps(size_bytes, self._gbps(src_sip, dst_sip, link))
            booked = self._bookings.get(index)
            if booked is None:
                booked = self._bookings[index] = LinkBookings()
            head = max(head, int(self._free_ps[index]))
            begin, end = booked.book(head, wire_ps)
            tail = max(tail, end)
            hops.append(Hop(index, begin, tail, wire_ps))
            head, tail = head + link.latency_ps, tail + link.latency_ps
        return Passage(head, tail, tuple(hops))

    def _gbps(self, src_sip: int, dst_sip: int, link: Link) -> Fraction:
        """Return what kernels reach of a link on the way from one SIP to another."""
        most = span_gbps(self.machine, (src_sip, dst_sip))
        library = self.machine.spec.collectives
        peer = None if library is None else library.peer
        bandwidth_gbps = link.bandwidth_gbps if most is None else min(link.bandwidth_gbps, most)
        return bandwidth_gbps * (Fraction(1) if peer is None else peer.bandwidth_share)

    def _free(self, links: Times) -> Times:
        """Return when links are free of collectives and transfers."""
        free: Times = self._free_ps[links]
        if self._bookings:
            booked = [
                self._bookings[link].end_ps if link in self._bookings else 0
                for link in links.tolist()
            ]
            free = np.maximum(free, np.array(booked, dtype=np.int64))
        return free

    def run(
        self,
        schedule: Schedule,
        sips: tuple[int, ...],
        starts_ps: tuple[int, ...],
        protocol: str = PLAIN,
        free_ps: Times | None = None,
    ) -> Transferred:
        """Place the collective in virtual time and occupy the links that it takes.

        Rank ``i`` of the group is on SIP ``sips[i]`` and enters at ``starts_ps[i]``. Schedules of
        one key must be equal, as those that ``collectives.build`` makes are. ``protocol`` is one
        that :attr:`selector` gives for the algorithm; without it, only the links cost.
        ``free_ps`` is when the links are free, if that is another time: see :meth:`free_ps`.

        Raises:
            UsageError: The machine has no such SIP.
            InternalError: There is not one SIP and one start per rank.
        """
        if not len(sips) == len(starts_ps) == schedule.num_ranks:
            raise InternalError(
                f"{schedule.op} of {schedule.num_ranks} ranks was given {len(sips)} SIPs and "
                f"{len(starts_ps)} starts"
            )
        plan = self._plan(schedule, sips, protocol)
        base = min(starts_ps)
        starts = np.array(starts_ps, dtype=np.int64) - base
        free = np.maximum((self._free(plan.links) if free_ps is None else free_ps) - base, 0)
        timing = self._timings.get(
            (schedule.key, protocol, sips, starts.tobytes(), free.tobytes()),
            lambda: self._time(plan, starts, free, protocol),
        )
        free_ps = timing.free_ps + base
        self._free_ps[timing.links] = free_ps
        ends_ps = tuple([end + base for end in timing.ends_ps])
        return Transferred(
            starts_ps, ends_ps, timing.template, timing.hbm_ps, timing.links, free_ps
        )

    def _plan(self, schedule: Schedule, sips: tuple[int, ...], protocol: str) -> LinkPlan:
        spec = self.selector.protocol(schedule.op, schedule.algorithm, protocol)
        return self.selector.idle_times.plan(schedule, sips, protocol, spec)

    def free_ps(self, schedule: Schedule, sips: tuple[int, ...], protocol: str) -> Times:
        """Return when the links that a collective takes are free."""
        return self._free(self._plan(schedule, sips, protocol).links)

    def links_of(self, schedule: Schedule, sips: tuple[int, ...], protocol: str) -> frozenset[int]:
        """Return the numbers of the links that a collective of these SIPs uses."""
        spec = self.selector.protocol(schedule.op, schedule.algorithm, protocol)
        return frozenset(build_link_plan(schedule, self.machine, sips, spec).links.tolist())

    def delay(self, placed: Transferred, now_ps: int, by_ps: int) -> None:
        """Record that a collective ends later than it was placed, or less late (below 0).

        Links that a later one has taken over since stay as they are.
        """
        links, free_ps = placed.links, placed.free_ps
        held = (self._free_ps[links] == free_ps) & (free_ps > now_ps)
        self._free_ps[links[held]] += by_ps
        free_ps[held] += by_ps

    def _time(self, plan: LinkPlan, starts: Times, free: Times, protocol: str) -> _Relative:
        timing = None
        if not starts.any() and not free.any():
            # Who chose the algorithm has asked for just that.
            timing = self.selector.idle_times.timing(plan, protocol)
        if timing is None:
            timing = run_on_links(plan, starts, free)
        return _relative(plan, timing, starts, free, protocol)


def _energy_pj(plan: LinkPlan, timing: Timing) -> Mapping[Energy, int]:
    """Return what the bytes take on links and in HBM, by what the group's first SIP draws."""
    power = plan.machine.sip_at(int(plan.sips[0])).power
    if power is None:
        return {}
    carried = plan.link_bytes(timing.busy_ps)
    inner = plan.links < plan.machine.num_inner_links
    ports = ~inner & (plan.links < plan.machine.first_leaf_link)
    work = WorkCounts(
        hbm_bytes=int(plan.hbm_bytes.sum()),
        link_bytes=float(carried[inner].sum()),
        network_bytes=float(carried[ports].sum()),
        elements={"simple": plan.reduced_bytes // plan.schedule.itemsize},
    )
    return pace_of(uncapped(power), work, 0, 0).energy_pj


_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "send_recv"})


def _given(schedule: Schedule) -> dict[str, int]:
    root = {"root": schedule.root} if schedule.op in _ROOTED else {}
    return {"itemsize": schedule.itemsize, **root}


def _relative(
    plan: LinkPlan, timing: Timing, starts: Times, free: Times, protocol: str
) -> _Relative:
    schedule = plan.schedule

    def make_rows() -> dict[str, Column]:
        # Timed again, with notes: most rows are never read.
        trail = Trail()
        run_on_links(plan, starts, free, trail)
        return build_rows(plan, trail)

    num_links = max(plan.num_links, 1)
    template = Template(
        name=schedule.op,
        kind="collective",
        algorithm=f"{schedule.algorithm}/{protocol}" if protocol else schedule.algorithm,
        duration_ps=int(timing.ends_ps.max()),
        flops=plan.reduced_bytes // schedule.itemsize,
        hbm_bytes=int(plan.hbm_bytes.sum()),
        engine_busy_ps={Engine.LINK: int(timing.busy_ps.sum()) // num_links},
        message_bytes=schedule.size_bytes,
        make_rows=make_rows,
        bound_ps=int(timing.busy_ps.max(initial=0)),
        hbm_bytes_by_rank=tuple(plan.hbm_bytes.tolist()),
        launched_with=_given(schedule),
        energy_pj=_energy_pj(plan, timing),
    )
    # Relative times cannot tell how long before the start an idle link became free.
    occupied = timing.free_ps > 0
    ends_ps, hbm_ps = tuple(timing.ends_ps.tolist()), tuple(plan.hbm_ps.tolist())
    return _Relative(ends_ps, template, hbm_ps, plan.links[occupied], timing.free_ps[occupied])
