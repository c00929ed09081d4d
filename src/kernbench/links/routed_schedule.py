"""A collective's schedule laid on the links of a machine: what takes how long, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernbench.collectives import Part, Schedule, Step
from kernbench.hardware import NO_LINK, PLAIN_PROTOCOL, Machine, ProtocolSpec, SipSpec, transfer_ps
from kernbench.links.lanes import PortLanes, Rest, lanes_of
from kernbench.links.wires import (
    Positions,
    RouteHop,
    Times,
    Wires,
    build_wires,
    hops_of,
    local_hop,
    part_hops,
)

_RoundKey = tuple[tuple[int, int, Part], ...]


_MOST_PAIRS = 1 << 18
"""Of ranks, whose links are looked for at a time."""
REDUCE_TRAFFIC = 3
"""HBM bytes per byte received and reduced: both operands are read, the result is written."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Steps that links serve in order of arrival, and all their transfers, step by step."""

    first: int
    """The number of the first of them in the schedule."""
    waits: bool
    """Whether it waits for what was before; False if it was issued together with that."""
    steps: tuple[Step, ...]
    wires: Wires
    hops: Iterable[RouteHop]
    """The hops of all transfers, to be gone through once."""
    sizes: Positions
    """The size of every transfer, as a position in the plan's ``sizes``."""
    memory_ps: Times
    """Least time of taking every one in."""


_PORT, _LEAF = 1, 2
"""Levels of links: those of ports to the network, and those between its switches."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkPlan:
    """A schedule and a protocol on given SIPs. Links are numbered locally: position in ``links``.

    Tables over (link, size) and (rank, size) are flat; a size is the position of a chunk's bytes
    in ``sizes``.
    """

    schedule: Schedule
    machine: Machine
    sips: Positions
    links: Positions
    """Indices into the machine's links."""
    local: Positions | None
    """The position in ``links`` of each link of the machine; None where all links are used."""
    sizes: Times
    size_of_span: dict[int, Positions]
    """The size of chunks that travel as one, by their number and the first of them."""
    link_latency_ps: Times
    wire_ps: Times
    """How long a transfer occupies a link, by ``link * len(sizes) + size``."""
    memory_ps: Times
    """The least time of taking a chunk in, by ``(reduce * ranks + rank) * len(sizes) + size``."""
    entry_ps: int
    """The time from the call to the first transfer."""
    step_ps: int
    """The time from the arrival of a chunk to its use."""
    round_ps: int
    """The time before every round but the first."""
    exit_ps: Times
    """Per rank, from its last transfer to its end."""
    hbm_ps: Times
    """Per rank, HBM time of all that it reads and writes."""
    hbm_bytes: Times
    reduced_bytes: int
    lanes: PortLanes
    """Links that each transfer between nodes takes side by side."""
    rest: Rest | None
    """What follows the first piece of every chunk, where ranks hand on pieces; None elsewhere."""
    _kept: dict[_RoundKey, tuple[Wires, list[RouteHop]] | None]
    """Where rounds travel that come several times, once it has been computed."""

    @property
    def num_links(self) -> int:
        return len(self.links)

    def link_bytes(self, busy_ps: Times) -> npt.NDArray[np.float64]:
        """Return how many bytes of chunks each link carried that was occupied for so long."""
        if not self.num_links:
            return np.zeros(0)
        size, last = float(self.sizes[-1]), len(self.sizes) - 1
        per_chunk = self.wire_ps.reshape(self.num_links, -1)[:, last]
        return busy_ps * (size / np.maximum(per_chunk, 1))

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds in order. Those with equal index arrays share their wires."""
        for first, steps in _rounds(self.schedule):
            key = _key(steps)
            kept = self._kept.get(key)
            if kept is None:
                wires = build_wires(steps, self.machine, self.sips)
                hops: Iterable[RouteHop] = (
                    local_hop(links, self.local, self.num_links)
                    for links in hops_of(wires, self.machine, self.sips)
                )
                if key in self._kept:
                    # The others are too many to keep: a million transfers of 256 hops each.
                    hops = list(hops)
                    self._kept[key] = wires, hops
            else:
                wires, hops = kept
            pieces = [self.size_of_span[step.span][step.chunk] for step in steps]
            sizes = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            rank = wires.dst
            if any(step.reduce for step in steps):
                adds = np.repeat([step.reduce for step in steps], [len(step) for step in steps])
                rank = rank + adds * self.schedule.num_ranks
            memory_ps = self.memory_ps[rank * len(self.sizes) + sizes]
            if wires.not_taken_in is not None:
                memory_ps[wires.not_taken_in] = 0
            waits = not steps[0].concurrent
            yield Round(first, waits, steps, wires, hops, sizes, memory_ps)


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
    places = np.array(sips, dtype=np.intp)
    lanes = lanes_of(schedule, machine, places)
    used = _links_used(schedule, machine, places)
    used = np.union1d(used, lanes.links)
    local = None
    if len(used) < len(machine.links):
        local = np.zeros(len(machine.links), dtype=np.intp)
        local[used] = np.arange(len(used))
    spans = sorted({step.span for step in schedule.steps}) or [1]
    by_span = {span: schedule.span_bytes(span) for span in spans}
    sizes = np.unique(np.concatenate(list(by_span.values())))
    size_list = sizes.tolist()
    links = [machine.links[link] for link in used.tolist()]
    most = span_gbps(machine, sips)
    # Links of one level share the object; a million fractions would take long to compare.
    inner = machine.num_inner_links
    leaf = machine.first_leaf_link
    kinds = [(id(it.bandwidth_gbps), (it.index >= inner) + (it.index >= leaf)) for it in links]
    bandwidths = dict(zip(kinds, (link.bandwidth_gbps for link in links), strict=True))
    rates = {
        kind: (1 if kind[1] == _LEAF else lanes.width(kind[1] == _PORT))
        * protocol.share(kind[1] >= _PORT)
        * (gbps if most is None else min(gbps, most))
        for kind, gbps in bandwidths.items()
    }
    library = machine.spec.collectives
    # What the first pieces of chunks take; the rest follows behind them.
    pieces = [protocol.piece_bytes(size) if schedule.pipelined else size for size in size_list]
    inside_piece = None
    if schedule.pipelined and protocol.channel is not None and library is not None:
        message = max(schedule.size_bytes, 1)
        channels, piece = protocol.channel.first(message, library.channels)
        pieces = [-(-size * channels * piece // message) for size in size_list]
        # A channel takes its part of a link in the node, whether others are used or not.
        inside_piece = piece * library.channels
    wire = {
        key: [
            transfer_ps(size if inside_piece is None or key[1] >= _PORT else inside_piece, rate)
            for size in pieces
        ]
        for key, rate in rates.items()
    }
    hbm_bytes, reduced_bytes = _hbm_traffic(schedule)
    specs = [machine.sip_at(sip) for sip in sips]
    size_of_span = {span: np.searchsorted(sizes, value) for span, value in by_span.items()}
    largest = size_list[0] if len(size_list) == 1 else _largest_sent(schedule)
    fill_bytes = 0 if library is None else library.fill_bytes
    has_own = schedule.op == "all_to_all"
    tails = [
        protocol.tail_ps(size, min(rates.values()), fill_bytes, has_own) if rates else 0
        for size in pieces
    ]
    network_ps = [
        protocol.network_ps if it.index >= inner and it.dst_sip >= 0 else 0 for it in links
    ]
    plan = LinkPlan(
        schedule=schedule,
        machine=machine,
        sips=places,
        links=used,
        local=local,
        sizes=sizes,
        size_of_span={span: value.astype(np.intp) for span, value in size_of_span.items()},
        link_latency_ps=np.array([link.latency_ps for link in links], dtype=np.int64)
        + np.array(network_ps, dtype=np.int64),
        wire_ps=np.array([wire[kind] for kind in kinds], dtype=np.int64).ravel(),
        memory_ps=np.concatenate(
            [_memory_ps(specs, pieces, traffic) for traffic in (1, REDUCE_TRAFFIC)]
        ),
        entry_ps=(
            protocol.launch_ps(
                schedule.ranks_per_node if schedule.pipelined else schedule.num_ranks,
                largest,
                schedule.size_bytes,
            )
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
        lanes=lanes.renumbered(used),
        rest=None,
        _kept=_repeated(schedule),
    )
    if pieces == size_list:
        return plan
    # The same plan with what is behind the first pieces only, which keeps links and memory busy.
    behind = {
        key: [
            transfer_ps(size, rate) - transfer_ps(piece, rate)
            for size, piece in zip(size_list, pieces, strict=True)
        ]
        for key, rate in rates.items()
    }
    behind_ps = np.array([behind[kind] for kind in kinds], dtype=np.int64).ravel()
    memory_ps = np.concatenate(
        [_memory_ps(specs, size_list, traffic) for traffic in (1, REDUCE_TRAFFIC)]
    )
    return replace(plan, rest=rest_of(plan, behind_ps, memory_ps - plan.memory_ps))


def rest_of(plan: LinkPlan, wire_ps: Times, memory_ps: Times) -> Rest:
    """Return how long links, and the memory of ranks, are busy with what is behind first pieces."""
    busy = np.zeros(plan.num_links, dtype=np.int64)
    taken = np.zeros(plan.schedule.num_ranks, dtype=np.int64)
    by_rank = memory_ps.reshape(2, -1, len(plan.sizes))
    for item in plan.rounds():
        for hop in item.hops:
            sizes = item.sizes if hop.who is None else item.sizes[hop.who]
            np.add.at(busy, hop.links, wire_ps[hop.links * len(plan.sizes) + sizes])
        reduce = np.repeat([it.reduce for it in item.steps], [len(it) for it in item.steps])
        dst = item.wires.dst
        np.add.at(taken, dst, by_rank[reduce.astype(np.intp), dst, item.sizes])
    return Rest(busy, int(max(busy.max(initial=0), taken.max(initial=0))))


def _rounds(schedule: Schedule) -> Iterator[tuple[int, tuple[Step, ...]]]:
    """Yield every round: the number of its first step, and its steps."""
    steps = schedule.steps
    begins = [
        number
        for number, step in enumerate(steps)
        if not number or not step.concurrent or step.behind
    ]
    for begin, end in pairwise([*begins, len(steps)]):
        yield begin, steps[begin:end]


def _key(steps: tuple[Step, ...]) -> _RoundKey:
    return tuple((id(step.src), id(step.dst), step.part) for step in steps)


def _repeated(schedule: Schedule) -> dict[_RoundKey, tuple[Wires, list[RouteHop]] | None]:
    counts = Counter(_key(steps) for _, steps in _rounds(schedule))
    return {key: None for key, count in counts.items() if count > 1}


def _links_used(schedule: Schedule, machine: Machine, sips: Positions) -> Positions:
    """Return the links that any transfer takes, in order of their numbers."""
    is_used = np.zeros(len(machine.links), dtype=np.bool_)
    distinct = {(step.part, id(step.src), id(step.dst)): step for step in schedule.steps}
    # As many steps at a time as fit into few megabytes: a call for each would take longer.
    at_once = max(_MOST_PAIRS // schedule.num_ranks, 1)
    for part in {step.part for step in distinct.values()}:
        steps = [step for step in distinct.values() if step.part == part]
        for first in range(0, len(steps), at_once):
            some = steps[first : first + at_once]
            src = np.concatenate([step.src for step in some]).astype(np.intp)
            dst = np.concatenate([step.dst for step in some]).astype(np.intp)
            for links in part_hops(part, src, dst, machine, sips):
                is_used[links[links != NO_LINK]] = True
            if is_used.all():
                break
    return np.flatnonzero(is_used)


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
    return max((int(size.max()) for size in sizes if len(size)), default=0)


def _hbm_traffic(schedule: Schedule) -> tuple[Times, int]:
    """Return the HBM bytes that each rank reads and writes, and how many bytes are reduced."""
    traffic = np.zeros(schedule.num_ranks, dtype=np.int64)
    reduced = 0
    for step in schedule.steps:
        sizes = schedule.step_bytes(step)
        if step.part != "down":
            traffic[step.src] += sizes
        if step.part == "up":
            continue  # the switch adds, and hands on the sum with the rank's own part
        if step.reduce:
            reduced += int(sizes.sum())
            sizes = sizes * REDUCE_TRAFFIC
        traffic[step.dst] += sizes
    if schedule.fold:
        traffic += (schedule.num_ranks + 1) * schedule.size_bytes
        reduced += schedule.num_ranks * (schedule.num_ranks - 1) * schedule.size_bytes
    return traffic, reduced
