"""A collective's schedule laid on the links of a machine: what takes how long, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from kernbench.collectives import Part, Schedule, Step
from kernbench.errors import UsageError
from kernbench.hardware import PLAIN_PROTOCOL, Machine, ProtocolSpec, SipSpec, transfer_ps

Times = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]

Leg = tuple[int, int, Part]
"""Sender and receiver as positions in the group, and which part of the way it is."""

REDUCE_TRAFFIC = 3
"""HBM bytes per byte received and reduced: both operands are read, the result is written."""


@dataclass(frozen=True, slots=True, eq=False)
class Wires:
    """Where the transfers of one step travel: one entry per transfer, in the step's order."""

    src: Positions
    dst: Positions
    hops: tuple[Positions, ...]
    """Per hop, the local link of every transfer; ``num_links`` where its route has ended."""
    latency_ps: Times
    """Sum over the route."""
    ahead_ps: Times
    """The part of it that lies before the first hop."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkPlan:
    """A schedule and a protocol on given SIPs. Links are numbered locally: position in ``links``.

    Tables over (link, size) and (rank, size) are flat; a size is the position of a chunk's bytes
    in ``sizes``. ``link_latency_ps`` and ``wire_ps`` have one more link at the end, which takes no
    time, for routes that are shorter than others.
    """

    schedule: Schedule
    sips: tuple[int, ...]
    links: Positions
    """Indices into the machine's links."""
    routes: dict[Leg, tuple[int, ...]]
    """Local links from a source to a destination (positions in the group)."""
    leg_latency_ps: dict[Leg, int]
    """Beside the latencies of the links: links that carry it without this transfer's bytes."""
    is_shared: bool
    """Whether some link carries transfers between different pairs of ranks."""
    sizes: Times
    size_of_span: dict[int, Positions]
    """By how many chunks travel as one: the size, by the first of them."""
    link_latency_ps: Times
    wire_ps: Times
    """By ``link * len(sizes) + size``: how long a transfer occupies a link."""
    memory_ps: tuple[Times, Times]
    """By ``rank * len(sizes) + size``: least time of taking a chunk in, copied and reduced."""
    entry_ps: int
    """From the call to the first transfer."""
    step_ps: int
    """From the arrival of a chunk to its use."""
    round_ps: int
    """Before every round but the first."""
    exit_ps: Times
    """Per rank, from its last transfer to its end."""
    hbm_ps: Times
    """Per rank, HBM time of all that it reads and writes."""
    hbm_bytes: Times
    reduced_bytes: int
    _wires: dict[tuple[int, int, Part], Wires] = field(default_factory=dict)

    @property
    def num_links(self) -> int:
        return len(self.links)

    @property
    def is_empty(self) -> bool:
        """Whether nothing but empty chunks move, which take latency only."""
        return self.schedule.work_elements == 0

    def sizes_of(self, step: Step) -> Positions:
        """Return the size of every transfer of a step, as a position in ``sizes``."""
        sizes: Positions = self.size_of_span[step.span][step.chunk]
        return sizes

    def wires(self, step: Step) -> Wires:
        """Return where the step's transfers travel. Steps that share index arrays share it."""
        key = (id(step.src), id(step.dst), step.part)
        found = self._wires.get(key)
        if found is None:
            found = self._wires[key] = self._build_wires(step)
        return found

    def _build_wires(self, step: Step) -> Wires:
        legs = _legs(step)
        routes = [self.routes[leg] for leg in legs]
        latency = self.link_latency_ps.tolist()
        longest = 0 if self.is_empty else max(map(len, routes), default=0)
        padded = [route + (self.num_links,) * (longest - len(route)) for route in routes]
        hops = zip(*padded, strict=True) if longest else ()
        return Wires(
            step.src.astype(np.intp),
            step.dst.astype(np.intp),
            tuple(np.array(hop, dtype=np.intp) for hop in hops),
            np.array(
                [
                    self.leg_latency_ps[leg] + sum(latency[link] for link in route)
                    for leg, route in zip(legs, routes, strict=True)
                ],
                dtype=np.int64,
            ),
            np.array([self.leg_latency_ps[leg] for leg in legs], dtype=np.int64),
        )


def build_link_plan(
    schedule: Schedule,
    machine: Machine,
    sips: Sequence[int],
    protocol: ProtocolSpec = PLAIN_PROTOCOL,
) -> LinkPlan:
    """Return ``schedule`` on ``machine`` in a protocol, its rank ``i`` on ``sips[i]``.

    Raises:
        UsageError: The machine has no such SIP, or no switch that the schedule needs.
    """
    legs = _route_all(schedule, machine, sips)
    used = sorted({link for route, _ in legs.values() for link in route})
    local = {link: position for position, link in enumerate(used)}
    spans = sorted({step.span for step in schedule.steps}) or [1]
    by_span = {span: schedule.span_bytes(span) for span in spans}
    sizes = np.unique(np.concatenate(list(by_span.values())))
    size_list = sizes.tolist()
    links = [machine.links[link] for link in used]
    most = span_gbps(machine, sips)
    rates = [
        protocol.bandwidth_share
        * (link.bandwidth_gbps if most is None else min(link.bandwidth_gbps, most))
        for link in links
    ]
    wire = _wire_ps(rates, size_list)
    wire.append([0] * len(size_list))
    hbm_bytes, reduced_bytes = _hbm_traffic(schedule)
    specs = [machine.sip_at(sip) for sip in sips]
    size_of_span = {span: np.searchsorted(sizes, each) for span, each in by_span.items()}
    largest = size_list[0] if len(size_list) == 1 else _largest_sent(schedule)
    library = machine.spec.collectives
    tails = [
        protocol.tail_ps(size, min(rates), 0 if library is None else library.fill_bytes)
        if rates
        else 0
        for size in size_list
    ]
    return LinkPlan(
        schedule=schedule,
        sips=tuple(sips),
        links=np.array(used, dtype=np.intp),
        routes={leg: tuple(local[link] for link in route) for leg, (route, _) in legs.items()},
        leg_latency_ps={leg: latency for leg, (_, latency) in legs.items()},
        is_shared=sum(len(route) for route, _ in legs.values()) > len(used),
        sizes=sizes,
        size_of_span={span: each.astype(np.intp) for span, each in size_of_span.items()},
        link_latency_ps=np.array([link.latency_ps for link in links] + [0], dtype=np.int64),
        wire_ps=np.array(wire, dtype=np.int64).ravel(),
        memory_ps=(
            _memory_ps(specs, size_list, traffic=1),
            _memory_ps(specs, size_list, traffic=REDUCE_TRAFFIC),
        ),
        entry_ps=(
            protocol.launch_ps(schedule.num_ranks, largest, schedule.size_bytes)
            if schedule.steps
            else 0
        ),
        step_ps=protocol.step_ps,
        round_ps=protocol.round_ps,
        exit_ps=_exits(schedule, specs, size_of_span, tails),
        hbm_ps=np.array(
            [
                spec.hbm_stream_ps(size)
                for spec, size in zip(specs, hbm_bytes.tolist(), strict=True)
            ],
            dtype=np.int64,
        ),
        hbm_bytes=hbm_bytes,
        reduced_bytes=reduced_bytes,
    )


def _legs(step: Step) -> list[Leg]:
    ends = zip(step.src.tolist(), step.dst.tolist(), strict=True)
    return [(src, dst, step.part) for src, dst in ends]


def _route_all(
    schedule: Schedule, machine: Machine, sips: Sequence[int]
) -> dict[Leg, tuple[tuple[int, ...], int]]:
    """Return for every leg its links, and the latency of links that it takes for nothing."""
    legs: dict[Leg, tuple[tuple[int, ...], int]] = {}
    seen: set[tuple[int, int, Part]] = set()
    for step in schedule.steps:
        key = (id(step.src), id(step.dst), step.part)
        if key not in seen:
            seen.add(key)
            for leg in _legs(step):
                if leg not in legs:
                    legs[leg] = _route(leg, machine, sips)
    return legs


def _route(leg: Leg, machine: Machine, sips: Sequence[int]) -> tuple[tuple[int, ...], int]:
    src, dst, part = leg
    if part == "whole":
        return machine.route(sips[src], sips[dst]), 0
    # Any other SIP is behind the same switch.
    other = sips[dst] if src != dst else sips[src - 1]
    links = machine.route(sips[src], other)
    back = machine.route(other, sips[src])
    if len(links) != 2 or machine.links[links[0]].dst_sip >= 0:
        raise UsageError(
            f"SIPs {sips[src]} and {other} of machine {machine.name} are not behind one switch, "
            "which in_switch needs; take another algorithm"
        )
    if part == "turn":
        return (links[0], back[1]), 0
    if part == "up":
        return links[:1], 0
    return links[1:], machine.links[links[0]].latency_ps


def span_gbps(machine: Machine, sips: Sequence[int]) -> Fraction | None:
    """Return what a link carries among these SIPs if the machine bounds it, else None."""
    links = machine.spec.links
    if links is None or not links.span_bandwidth_gbps:
        return None
    domains = sorted(links.span_bandwidth_gbps)
    for size in domains:
        if len({sip // size for sip in sips}) == 1:
            return links.span_bandwidth_gbps[size]
    return links.span_bandwidth_gbps[domains[-1]]


def _wire_ps(rates: Sequence[Fraction], sizes: Sequence[int]) -> list[list[int]]:
    """Return the time of every size at every rate; equal rates share their row."""
    rows = {rate: [transfer_ps(size, rate) for size in sizes] for rate in set(rates)}
    return [rows[rate] for rate in rates]


def _exits(
    schedule: Schedule,
    specs: Sequence[SipSpec],
    size_of_span: dict[int, Positions],
    tails: Sequence[int],
) -> Times:
    """Return what every rank still does after its last transfer."""
    exits = np.zeros(schedule.num_ranks, dtype=np.int64)
    if any(tails):
        received = np.full(schedule.num_ranks, -1)
        sent = np.full(schedule.num_ranks, -1)
        by_size = np.array(tails, dtype=np.int64)
        for number, step in enumerate(schedule.steps):
            received[step.dst] = number
            sent[step.src] = number
            exits[step.dst] = by_size[size_of_span[step.span][step.chunk]]
        # Who sends last has handed on what it took in.
        exits[received < sent] = 0
    if schedule.fold:
        moved = (schedule.num_ranks + 1) * schedule.size_bytes
        exits += np.array([spec.hbm_stream_ps(moved) for spec in specs], dtype=np.int64)
    return exits


def _memory_ps(specs: Sequence[SipSpec], sizes: Sequence[int], traffic: int) -> Times:
    by_spec = {
        id(spec): [spec.hbm_stream_ps(traffic * size) for size in sizes]
        for spec in {id(spec): spec for spec in specs}.values()
    }
    return np.array([by_spec[id(spec)] for spec in specs], dtype=np.int64).ravel()


def _largest_sent(schedule: Schedule) -> int:
    """Return the bytes of the largest chunk that travels; a root's own may stay where it is."""
    sizes = (schedule.step_bytes(step) for step in schedule.steps)
    return max((int(each.max()) for each in sizes if len(each)), default=0)


def _hbm_traffic(schedule: Schedule) -> tuple[Times, int]:
    """Return the HBM bytes that each rank reads and writes, and how many bytes are reduced."""
    traffic = schedule.sent_bytes()
    reduced = 0
    for step in schedule.steps:
        if step.part == "up":
            continue  # the switch adds, and hands on the sum with the rank's own part
        sizes = schedule.step_bytes(step)
        if step.reduce:
            reduced += int(sizes.sum())
            sizes = sizes * REDUCE_TRAFFIC
        traffic[step.dst] += sizes
    if schedule.fold:
        traffic += (schedule.num_ranks + 1) * schedule.size_bytes
        reduced += schedule.num_ranks * (schedule.num_ranks - 1) * schedule.size_bytes
    return traffic, reduced
