"""A collective's schedule laid on the links of a machine: what takes how long, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kernbench.collectives import Schedule, Step
from kernbench.hardware import Machine, SipSpec

Times = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]

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


@dataclass(frozen=True, slots=True, eq=False)
class LinkPlan:
    """A schedule on given SIPs. Links are numbered locally: position in ``links``.

    Tables over (link, size) and (rank, size) are flat; a size is the position of a chunk's bytes
    in ``sizes``. ``link_latency_ps`` and ``wire_ps`` have one more link at the end, which takes no
    time, for routes that are shorter than others.
    """

    schedule: Schedule
    sips: tuple[int, ...]
    links: Positions
    """Indices into the machine's links."""
    routes: dict[tuple[int, int], tuple[int, ...]]
    """Local links from a source to a destination (positions in the group)."""
    is_shared: bool
    """Whether some link carries transfers between different pairs of ranks."""
    sizes: Times
    size_of_chunk: Positions
    link_latency_ps: Times
    wire_ps: Times
    """By ``link * len(sizes) + size``: how long a transfer occupies a link."""
    memory_ps: tuple[Times, Times]
    """By ``rank * len(sizes) + size``: least time of taking a chunk in, copied and reduced."""
    hbm_ps: Times
    """Per rank, HBM time of all that it reads and writes."""
    hbm_bytes: Times
    reduced_bytes: int
    _wires: dict[tuple[int, int], Wires] = field(default_factory=dict)

    @property
    def num_links(self) -> int:
        return len(self.links)

    @property
    def is_empty(self) -> bool:
        """Whether nothing but empty chunks move, which take latency only."""
        return self.schedule.num_elements == 0

    def wires(self, step: Step) -> Wires:
        """Return where the step's transfers travel. Steps that share index arrays share it."""
        key = (id(step.src), id(step.dst))
        found = self._wires.get(key)
        if found is None:
            found = self._wires[key] = self._build_wires(step)
        return found

    def _build_wires(self, step: Step) -> Wires:
        routes = [self.routes[pair] for pair in _pairs(step)]
        latency = self.link_latency_ps.tolist()
        longest = 0 if self.is_empty else max(map(len, routes), default=0)
        padded = [route + (self.num_links,) * (longest - len(route)) for route in routes]
        hops = zip(*padded, strict=True) if longest else ()
        return Wires(
            step.src.astype(np.intp),
            step.dst.astype(np.intp),
            tuple(np.array(hop, dtype=np.intp) for hop in hops),
            np.array([sum(latency[link] for link in route) for route in routes], dtype=np.int64),
        )


def build_link_plan(schedule: Schedule, machine: Machine, sips: Sequence[int]) -> LinkPlan:
    """Return ``schedule`` on ``machine``, its rank ``i`` on ``sips[i]``.

    Raises:
        UsageError: The machine has no such SIP.
    """
    pairs: dict[tuple[int, int], tuple[int, ...]] = {}
    seen: set[tuple[int, int]] = set()
    for step in schedule.steps:
        if (id(step.src), id(step.dst)) not in seen:
            seen.add((id(step.src), id(step.dst)))
            for src, dst in _pairs(step):
                if (src, dst) not in pairs:
                    pairs[src, dst] = machine.route(sips[src], sips[dst])
    used = sorted({link for route in pairs.values() for link in route})
    local = {link: position for position, link in enumerate(used)}
    sizes, size_of_chunk = np.unique(schedule.chunk_bytes(), return_inverse=True)
    size_list = sizes.tolist()
    links = [machine.links[link] for link in used]
    wire = [[link.transfer_ps(size) for size in size_list] for link in links]
    wire.append([0] * len(size_list))
    hbm_bytes, reduced_bytes = _hbm_traffic(schedule)
    specs = [machine.sip_at(sip) for sip in sips]
    return LinkPlan(
        schedule=schedule,
        sips=tuple(sips),
        links=np.array(used, dtype=np.intp),
        routes={pair: tuple(local[link] for link in route) for pair, route in pairs.items()},
        is_shared=sum(map(len, pairs.values())) > len(used),
        sizes=sizes,
        size_of_chunk=size_of_chunk.astype(np.intp),
        link_latency_ps=np.array([link.latency_ps for link in links] + [0], dtype=np.int64),
        wire_ps=np.array(wire, dtype=np.int64).ravel(),
        memory_ps=(
            _memory_ps(specs, size_list, traffic=1),
            _memory_ps(specs, size_list, traffic=REDUCE_TRAFFIC),
        ),
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


def _pairs(step: Step) -> list[tuple[int, int]]:
    return list(zip(step.src.tolist(), step.dst.tolist(), strict=True))


def _memory_ps(specs: Sequence[SipSpec], sizes: Sequence[int], traffic: int) -> Times:
    by_spec = {
        id(spec): [spec.hbm_stream_ps(traffic * size) for size in sizes]
        for spec in {id(spec): spec for spec in specs}.values()
    }
    return np.array([by_spec[id(spec)] for spec in specs], dtype=np.int64).ravel()


def _hbm_traffic(schedule: Schedule) -> tuple[Times, int]:
    """Return the HBM bytes that each rank reads and writes, and how many bytes are reduced."""
    traffic = schedule.sent_bytes()
    chunk_bytes = schedule.chunk_bytes()
    reduced = 0
    for step in schedule.steps:
        sizes = chunk_bytes[step.chunk]
        if step.reduce:
            reduced += int(sizes.sum())
            sizes = sizes * REDUCE_TRAFFIC
        traffic[step.dst] += sizes
    return traffic, reduced
