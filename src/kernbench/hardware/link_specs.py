"""What a machine file says about the links between SIPs."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from kernbench.hardware.fabrics.specs import LeavesSpec
from kernbench.hardware.spec_base import Count, NotNegative, Positive, Spec

TopologyName = Literal[
    "ring",
    "one_way_ring",
    "mesh2d",
    "mesh3d",
    "torus2d",
    "torus3d",
    "fully_connected",
    "switch",
    "graph",
]

GRID_DIMS = {"mesh2d": 2, "mesh3d": 3, "torus2d": 2, "torus3d": 3}
"""How many numbers ``shape`` has, by topology; the other topologies have no shape."""


class LinkOverride(Spec):
    """One directed link that differs from the others."""

    src_sip: Annotated[int, Field(strict=True)]
    """Number of the SIP that sends."""
    dst_sip: Annotated[int, Field(strict=True)]
    """Number of the SIP that receives."""
    bandwidth_gbps: Positive | None = None
    """Bandwidth of such a link; that of the other links when missing."""
    latency_ns: NotNegative | None = None
    """Latency of such a link; that of the other links when missing."""


class ScaleOutSpec(Spec):
    """A second level of links, between nodes that each hold the topology of ``links``."""

    sips_per_node: Count
    """SIPs of a node; a machine that is larger must have a multiple of it."""
    sips_per_host: Count | None = None
    """SIPs that one operating system has, where the links of a node join several hosts (NVL72); all
    of a node when missing."""
    topology: Literal["switch", "ring", "fully_connected"]
    """``switch``: one link from every SIP to a network that never blocks (but see ``leaves``), and
    one back. The others join the SIPs that have the same place in their nodes (rails)."""
    bandwidth_gbps: Positive
    """Bandwidth of one network interface, one way."""
    latency_ns: NotNegative
    """Latency of one such link."""
    nics_per_node: Count | None = None
    """Network interfaces of a node; one for each SIP when missing. With fewer, as many SIPs in a
    row share each; with more, each SIP has as many. ``switch`` only."""

    leaves: LeavesSpec | None = None
    """The switches of the network; left out, it never blocks. ``switch`` only."""

    @property
    def host_size(self) -> int:
        """How many SIPs one host has."""
        return self.sips_per_host or self.sips_per_node

    @property
    def ports_per_node(self) -> int:
        """How many links leave a node: network interfaces, those of one SIP taken as one."""
        return min(self.nics_per_node or self.sips_per_node, self.sips_per_node)

    @property
    def port_gbps(self) -> Fraction:
        """The bandwidth of one such link."""
        nics = self.nics_per_node or self.sips_per_node
        return self.bandwidth_gbps * nics / self.ports_per_node

    def of_single_sips(self) -> dict[str, Any]:
        """Return the keys of a machine, as dotted paths, whose nodes are one SIP each.

        A SIP has its share of the node's interfaces: as when all SIPs of a node do the same.
        """
        return {
            "links.scale_out.sips_per_node": 1,
            "links.scale_out.sips_per_host": None,
            "links.scale_out.nics_per_node": None,
            "links.scale_out.bandwidth_gbps": self.port_gbps
            * self.ports_per_node
            / self.sips_per_node,
        }

    @model_validator(mode="after")
    def _interfaces_are_shared_evenly(self) -> Self:
        if self.nics_per_node is None:
            return self
        if self.topology != "switch":
            raise ValueError(
                f"nics_per_node is {self.nics_per_node}, but topology {self.topology} has rails, "
                "with one interface for every SIP; leave it out, or take topology switch"
            )
        fewer, more = sorted((self.nics_per_node, self.sips_per_node))
        if more % fewer:
            raise ValueError(
                f"nics_per_node is {self.nics_per_node}, which {self.sips_per_node} SIPs of a node "
                f"cannot share evenly; take a divisor or a multiple of {self.sips_per_node}"
            )
        return self

    @model_validator(mode="after")
    def _leaves_have_the_links_they_name(self) -> Self:
        if self.leaves is None:
            return self
        if self.topology != "switch":
            raise ValueError(
                f"leaves are switches of a network, but topology {self.topology} has rails; leave "
                "them out, or take topology switch"
            )
        ports = self.leaves.nodes * (1 if self.leaves.ports == "rail" else self.ports_per_node)
        if self.leaves.uplinks is not None and self.leaves.uplinks > ports:
            raise ValueError(
                f"leaves.uplinks is {self.leaves.uplinks}, but a switch has {ports} interfaces"
            )
        return self

    @model_validator(mode="after")
    def _nodes_are_whole_hosts(self) -> Self:
        if self.sips_per_node % self.host_size:
            raise ValueError(
                f"sips_per_node is {self.sips_per_node}, which sips_per_host, "
                f"{self.host_size}, does not divide"
            )
        return self


class LinksSpec(Spec):
    """How the SIPs of a machine are joined. Every link is one direction of a wire."""

    topology: TopologyName
    """``ring`` has wires in both directions, ``one_way_ring`` only clockwise; ``graph`` takes its
    wires from ``edges``."""
    bandwidth_gbps: Positive
    """Bandwidth of one link, one way."""
    latency_ns: NotNegative
    """Latency of one link: from the first byte sent to the first byte received."""
    shape: tuple[Count, ...] | None = None
    """Meshes and tori only: SIPs along each axis, the last one being x; left out, the most
    square shape for the number of SIPs."""
    edges: tuple[tuple[int, int], ...] | None = None
    """graph only: pairs of SIPs that a wire joins, in both directions."""
    span_bandwidth_gbps: dict[Annotated[int, Field(ge=2)], Positive] = Field(default_factory=dict)
    """Bandwidth by the size of a domain (that many SIPs in a row, counted from 0): what a link
    carries in a collective whose ranks all lie in one domain. For machines in which a pair, a
    socket and the whole system differ."""
    scale_out: ScaleOutSpec | None = None
    """Left out: all SIPs are in one node."""
    overrides: tuple[LinkOverride, ...] = ()
    """Single links, one direction at a time, that differ."""

    @model_validator(mode="after")
    def _keys_fit_the_topology(self) -> Self:
        dims = GRID_DIMS.get(self.topology)
        if self.shape is not None and len(self.shape) != dims:
            if dims is None:
                raise ValueError(f"topology {self.topology} has no shape; remove the key")
            raise ValueError(
                f"shape of a {self.topology} must have {dims} numbers, but got {list(self.shape)}"
            )
        if (self.edges is None) == (self.topology == "graph"):
            what = "is missing" if self.edges is None else f"says nothing about a {self.topology}"
            raise ValueError(f"edges {what}; a graph has edges, other topologies have none")
        return self
