"""Builds the topology of a number of SIPs from the links of a machine file."""

from __future__ import annotations

from math import prod

from kernbench.errors import MachineError
from kernbench.hardware.fabrics import Leaves
from kernbench.hardware.link_specs import GRID_DIMS, LinksSpec
from kernbench.hardware.topology import (
    FullyConnected,
    Grid,
    LinkGraph,
    OneWayRing,
    Ring,
    Switch,
    Topology,
    TwoLevels,
    most_even,
)

Shape = tuple[int, ...]

MOST_SIPS = 1 << 16
"""Limit of one machine's SIPs: every link is an object."""

# A wire between any two of more SIPs than this is no machine, and would fill the memory.
_MOST_FULLY_CONNECTED = 1024


def build_topology(
    links: LinksSpec, num_sips: int, asked: Shape | None, origin: str
) -> tuple[Topology, Shape | None]:
    """Return the topology of ``num_sips`` SIPs, and its shape if it is a mesh or torus.

    Up to ``scale_out.sips_per_node`` SIPs are part of one node. ``asked`` is a shape that goes
    before that of the file.

    Raises:
        MachineError: They cannot be joined that way; names ``origin`` and the key.
    """
    if num_sips > MOST_SIPS:
        raise MachineError(f"{origin}: a machine has at most {MOST_SIPS} SIPs, but got {num_sips}")
    outer = links.scale_out
    if outer is None or num_sips <= outer.sips_per_node:
        return _one_level(links, num_sips, asked, origin)
    size = outer.sips_per_node
    if num_sips % size:
        fewer, more = num_sips // size * size, -(-num_sips // size) * size
        raise MachineError(
            f"{origin}: links.scale_out.sips_per_node is {size}, which does not split "
            f"{num_sips} SIPs into whole nodes; take {fewer} or {more}"
        )
    num_nodes = num_sips // size
    inner, shape = _one_level(links, size, asked, origin)
    rails: dict[str, Topology | None] = {
        "switch": None,
        "ring": Ring(num_nodes),
        "fully_connected": FullyConnected(num_nodes),
    }
    ports = outer.ports_per_node
    leaves = None if outer.leaves is None else Leaves(outer.leaves, num_nodes, ports)
    return TwoLevels(inner, size, num_nodes, rails[outer.topology], ports, leaves), shape


def _one_level(
    links: LinksSpec, num_sips: int, asked: Shape | None, origin: str
) -> tuple[Topology, Shape | None]:
    num_axes = GRID_DIMS.get(links.topology)
    if num_axes is not None:
        shape = _shape(links, num_sips, num_axes, asked, origin)
        return Grid(shape, wraps=links.topology.startswith("torus")), shape
    if asked is not None:
        raise MachineError(
            f"{origin}: a size of {_text(asked)} is a mesh or torus, but links.topology is "
            f"{links.topology}; ask for {num_sips}"
        )
    return _shapeless(links, num_sips, origin), None


def _shape(
    links: LinksSpec, num_sips: int, num_axes: int, asked: Shape | None, origin: str
) -> Shape:
    if asked is not None and len(asked) != num_axes:
        raise MachineError(
            f"{origin}: a size of {_text(asked)} has {len(asked)} axes, but links.topology is "
            f"{links.topology}"
        )
    shape = asked or links.shape or most_even(num_sips, num_axes)
    if prod(shape) != num_sips:
        raise MachineError(
            f"{origin}: links.shape is {_text(shape)}, which makes {prod(shape)} SIPs, but "
            f"the {'node' if links.scale_out else 'machine'} has {num_sips}"
        )
    return shape


def _shapeless(links: LinksSpec, num_sips: int, origin: str) -> Topology:
    if links.topology == "graph":
        return _graph(links, num_sips, origin)
    if links.topology == "ring":
        return Ring(num_sips)
    if links.topology == "one_way_ring":
        return OneWayRing(num_sips)
    if links.topology == "switch":
        return Switch(num_sips)
    if num_sips > _MOST_FULLY_CONNECTED:
        raise MachineError(
            f"{origin}: links.topology fully_connected needs {num_sips * (num_sips - 1):,} links "
            f"for {num_sips} SIPs; it goes up to {_MOST_FULLY_CONNECTED}, take a switch"
        )
    return FullyConnected(num_sips)


def _graph(links: LinksSpec, num_sips: int, origin: str) -> LinkGraph:
    assert links.edges is not None
    seen: set[frozenset[int]] = set()
    for number, edge in enumerate(links.edges):
        where = f"{origin}: links.edges.{number} is {list(edge)}"
        if edge[0] == edge[1] or frozenset(edge) in seen:
            raise MachineError(f"{where}: must join two SIPs that no edge before it joins")
        if min(edge) < 0:
            raise MachineError(f"{where}: SIPs are numbered from 0")
        seen.add(frozenset(edge))
    # A smaller member of the family has the edges between the SIPs that it has.
    graph = LinkGraph(num_sips, [edge for edge in links.edges if max(edge) < num_sips])
    cut_off = graph.cut_off()
    if cut_off:
        shown = ", ".join(map(str, cut_off[:8])) + (", .." if len(cut_off) > 8 else "")
        raise MachineError(
            f"{origin}: links.edges leave SIP {shown} unconnected to SIP 0 in a machine of "
            f"{num_sips} SIPs; add edges"
        )
    return graph


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))
