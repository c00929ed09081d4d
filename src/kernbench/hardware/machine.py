"""A machine of a given size: its SIPs, its links, and the routes between SIPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from html import escape

import numpy as np

from kernbench.errors import MachineError, UsageError
from kernbench.hardware.joining import Shape, build_topology
from kernbench.hardware.link_specs import LinkOverride, LinksSpec, ScaleOutSpec
from kernbench.hardware.rates import PS_PER_NS, ceil_ps, ps_per_byte, transfer_ps
from kernbench.hardware.scenarios.chosen import (
    Wire,
    flapping_wires,
    slow_sips,
    slow_wires,
    slowed,
    wire,
    with_slow_links,
)
from kernbench.hardware.sources import leaves
from kernbench.hardware.specs import MachineSpec, SipSpec
from kernbench.hardware.topology import NO_LINK, SWITCH, Places, Topology, TwoLevels


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a wire. An end that is a switch or a network has a number below 0."""

    index: int
    src_sip: int
    dst_sip: int
    bandwidth_gbps: Fraction
    """Exact; a GB/s is a byte per nanosecond."""
    latency_ps: int
    name: str

    @property
    def ps_per_byte(self) -> Fraction:
        """The exact time of one byte; for arrays, ``ceil(bytes * numerator / denominator)``."""
        return ps_per_byte(self.bandwidth_gbps)

    def transfer_ps(self, size_bytes: int) -> int:
        """Return how long ``size_bytes`` occupy the link, without latency, rounded up."""
        return transfer_ps(size_bytes, self.bandwidth_gbps)


@dataclass(frozen=True, eq=False, repr=False)
class Machine:
    """A machine that programs can run on. Made by :func:`load_machine`; compared by identity."""

    spec: MachineSpec
    num_sips: int
    shape: Shape | None
    """SIPs along each axis of a mesh or torus, x last; None for other topologies."""
    sip_overrides: Mapping[int, SipSpec]
    _topology: Topology | None
    num_hosts: int = 1
    """How many operating systems its SIPs are divided among; more than one only where a size in
    nodes was asked for."""
    slow_sips: tuple[int, ...] = ()
    """The SIPs that a scenario has made slow."""
    slow_wires: tuple[Wire, ...] = ()
    """The wires of links that a scenario has made slow."""
    flapping_wires: tuple[Wire, ...] = ()
    """The wires of links that a scenario lets go down now and then."""
    _routes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    _sips: dict[int, SipSpec] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Machine({self.name}, {self.num_sips} SIPs, {self.topology})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(key)}</td><td>{escape(str(value))}</td></tr>"
            for key, value in leaves(self.spec.model_dump(mode="json", exclude_defaults=True))
        )
        return f"<details><summary>{escape(repr(self))}</summary><table>{rows}</table></details>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def sip(self) -> SipSpec:
        """The description of every SIP that ``sip_overrides`` does not list."""
        return self.spec.sip

    @property
    def topology(self) -> str:
        """The topology's name, ``"none"`` for a machine without links."""
        return self.spec.links.topology if self.spec.links is not None else "none"

    @property
    def sips_per_node(self) -> int:
        """How many SIPs the first level of links joins; all of them where there is no second."""
        topology = self._topology
        return topology.sips_per_node if isinstance(topology, TwoLevels) else self.num_sips

    @property
    def sips_per_host(self) -> int:
        """How many SIPs the programs of one host see."""
        return self.num_sips // self.num_hosts

    @property
    def num_inner_links(self) -> int:
        """How many links are inside nodes; those between nodes have the indices after them."""
        topology = self._topology
        return topology.first_outer_link if isinstance(topology, TwoLevels) else len(self.links)

    @property
    def first_leaf_link(self) -> int:
        """From which index on links are those between the switches of the network."""
        topology = self._topology
        return topology.first_leaf_link if isinstance(topology, TwoLevels) else len(self.links)

    def sip_at(self, sip_id: int) -> SipSpec:
        """Return the description of one SIP.

        Raises:
            UsageError: The machine has no such SIP.
        """
        # Asked several times per launch.
        sip = self._sips.get(sip_id)
        if sip is None:
            self._check_sip(sip_id)
            sip = self._sips[sip_id] = self.sip_overrides.get(sip_id, self.spec.sip)
        return sip

    @cached_property
    def links_to_switches(self) -> frozenset[int]:
        """The numbers of the links that end at a switch."""
        return frozenset(link.index for link in self.links if link.dst_sip < 0)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Every directed link, in order of index."""
        spec_of_all, spec = self.spec, self.spec.links
        if self._topology is None or spec is None:
            return ()
        changed = {(override.src_sip, override.dst_sip): override for override in spec.overrides}
        # One object for all: whoever compares a million of them looks at identities.
        port_gbps = spec.bandwidth_gbps if spec.scale_out is None else spec.scale_out.port_gbps
        num_nodes = self.num_sips // self.sips_per_node
        first_leaf, leaf_gbps = 0, None
        if isinstance(self._topology, TwoLevels) and self._topology.leaves is not None:
            first_leaf = self._topology.first_leaf_link
            leaf_gbps = self._topology.leaves.link_gbps(port_gbps)
        result = []
        for index, (src, dst) in enumerate(self._topology.ends()):
            level: LinksSpec | ScaleOutSpec = spec
            if isinstance(self._topology, TwoLevels) and index >= self._topology.first_outer_link:
                assert spec.scale_out is not None
                level = spec.scale_out
            bandwidth, latency = level.bandwidth_gbps, ceil_ps(level.latency_ns * PS_PER_NS)
            if isinstance(level, ScaleOutSpec):
                bandwidth = port_gbps
                if index >= first_leaf and leaf_gbps is not None and level.leaves is not None:
                    bandwidth, latency = leaf_gbps, ceil_ps(level.leaves.latency_ns * PS_PER_NS)
            override = changed.get((src, dst))
            if override is not None:
                bandwidth = override.bandwidth_gbps or bandwidth
                if override.latency_ns is not None:
                    latency = ceil_ps(override.latency_ns * PS_PER_NS)
            name = f"{_end(src, num_nodes)}->{_end(dst, num_nodes)}"
            result.append(Link(index, src, dst, bandwidth, latency, name))
        return with_slow_links(spec_of_all.scenario, tuple(result), self.slow_wires)

    @cached_property
    def with_equal_links(self) -> Machine:
        """The machine without slow links: what a library takes it for that chooses algorithms."""
        return replace(self, slow_wires=(), _routes={}, _sips={}) if self.slow_wires else self

    @cached_property
    def flapping_links(self) -> Mapping[int, Wire]:
        """The links that go down now and then, by index, with their wires."""
        wires = frozenset(self.flapping_wires)
        ends = {link.index: wire(link.src_sip, link.dst_sip) for link in self.links if wires}
        return {index: pair for index, pair in ends.items() if pair in wires}

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        """Return the indices of the links from one SIP to another, none when they are the same.

        Raises:
            UsageError: The machine has no such SIP.
        """
        key = (src_sip, dst_sip)
        result = self._routes.get(key)
        if result is None:
            hops = self.hops(np.array([src_sip]), np.array([dst_sip]))
            links = [int(link[0]) for link in hops]
            result = self._routes[key] = tuple(link for link in links if link != NO_LINK)
        return result

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        """Yield the first link of every route, then the second, ...; ``NO_LINK`` after its end.

        Raises:
            UsageError: The machine has no such SIP.
        """
        for sips in (src_sips, dst_sips):
            for extreme in (sips.min(initial=0), sips.max(initial=0)):
                self._check_sip(int(extreme))
        if self._topology is not None:
            yield from self._topology.hops(src_sips, dst_sips)

    def ports_of(self, sips: Places) -> tuple[Places, Places] | None:
        """Return each SIP's link to the network between nodes and its link from there.

        None where there is no such network: a single node, or rails.
        """
        topology = self._topology
        if not isinstance(topology, TwoLevels) or topology.outer is not None:
            return None
        return topology.ports_of(sips)

    def write_s(self, size_gb: float, num_sips: int) -> float:
        """Return the time in seconds in which the nodes of some SIPs write so many GB together.

        Each writes an equal part to the storage that they share.

        Raises:
            MachineError: The machine has none.
        """
        storage = self.spec.storage
        if storage is None:
            raise MachineError(
                f"machine {self.name} has no storage; add the section storage (node_gbps, "
                "filesystem_gbps), or give the time of a checkpoint"
            )
        outer = None if self.spec.links is None else self.spec.links.scale_out
        num_nodes = -(-num_sips // (num_sips if outer is None else outer.host_size))
        rate_gbps = min(storage.node_gbps * num_nodes, storage.filesystem_gbps)
        return float(storage.latency_ms) / 1000 + size_gb / float(rate_gbps)

    def _check_sip(self, sip_id: int) -> None:
        if not 0 <= sip_id < self.num_sips:
            raise UsageError(
                f"machine {self.name} has SIPs 0 to {self.num_sips - 1}, but SIP {sip_id} was asked"
            )


def build_machine(
    spec: MachineSpec,
    num_sips: int,
    origin: str,
    shape: Shape | None = None,
    sip_overrides: Mapping[int, SipSpec] | None = None,
    num_hosts: int = 1,
) -> Machine:
    """Return the machine of ``num_sips`` SIPs that ``spec`` describes.

    Raises:
        MachineError: The links do not fit that many SIPs; names ``origin`` and the key.
    """
    links = spec.links
    slow = slow_sips(spec.scenario, num_sips, origin)
    sips = _with_slow(spec, sip_overrides or {}, slow)
    if links is None:
        if num_sips > 1:
            raise MachineError(
                f"{origin}: links is missing, so its {num_sips} SIPs are unconnected; "
                "add links, or set sizes to [1]"
            )
        return Machine(spec, num_sips, None, sips, None, slow_sips=slow)
    topology, shape = build_topology(links, num_sips, shape, origin)
    machine = Machine(spec, num_sips, shape, sips, topology, num_hosts, slow)
    _check_overrides(links.overrides, spec.sizes, topology, machine, origin)
    scenario = spec.scenario
    if not (scenario.slow_links.count or scenario.flapping.count):
        return machine
    ends, first = topology.ends(), machine.num_inner_links
    return replace(
        machine,
        slow_wires=slow_wires(scenario, ends, first, origin),
        flapping_wires=flapping_wires(scenario, ends, first, origin),
        _routes={},
        _sips={},
    )


def _with_slow(
    spec: MachineSpec, overrides: Mapping[int, SipSpec], slow: tuple[int, ...]
) -> Mapping[int, SipSpec]:
    """Return the SIPs that differ; slow ones of one description share one object."""
    sip_specs = dict(overrides)
    known: dict[int, SipSpec] = {}
    for sip_id in slow:
        sip = overrides.get(sip_id, spec.sip)
        if id(sip) not in known:
            known[id(sip)] = slowed(spec.scenario, sip)
        sip_specs[sip_id] = known[id(sip)]
    return sip_specs


def _check_overrides(
    overrides: tuple[LinkOverride, ...],
    sizes: tuple[int, ...],
    topology: Topology,
    machine: Machine,
    origin: str,
) -> None:
    """Refuse an override of a link that even the family's largest machine does not have."""
    if not overrides:
        return
    known = set(topology.ends())
    largest = max(*sizes, machine.num_sips)
    for index, override in enumerate(overrides):
        beyond = max(override.src_sip, override.dst_sip) >= machine.num_sips
        if beyond and max(override.src_sip, override.dst_sip) < largest:
            continue  # belongs to a larger member of the family
        if (override.src_sip, override.dst_sip) not in known and machine.num_sips > 1:
            raise MachineError(
                f"{origin}: links.overrides.{index} names a link {_end(override.src_sip)}->"
                f"{_end(override.dst_sip)}, which a {machine.topology} of {machine.num_sips} SIPs "
                "does not have"
            )


def _end(sip: int, num_nodes: int = 1) -> str:
    if sip > SWITCH:
        return f"sip{sip}"
    if num_nodes == 1:
        return "switch"
    if SWITCH - sip > num_nodes:
        return f"leaf{SWITCH - sip - num_nodes - 1}"
    return "network" if SWITCH - sip == num_nodes else f"switch{SWITCH - sip}"
