"""Leaf switches: which ports lead to which, and the links that a transfer takes between them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from kernbench.hardware.fabrics.specs import LeavesSpec

Ports = npt.NDArray[np.int64]

_NONE = -1


@dataclass(frozen=True, slots=True)
class Leaves:
    """The switches of so many nodes. Links are numbered from 0: all up, then all down."""

    spec: LeavesSpec
    num_nodes: int
    ports_per_node: int

    @property
    def num_leaves(self) -> int:
        pods = -(-self.num_nodes // self.spec.nodes)
        return pods * (self.ports_per_node if self.spec.ports == "rail" else 1)

    @property
    def ports_per_leaf(self) -> int:
        nodes = self.spec.nodes
        return nodes if self.spec.ports == "rail" else nodes * self.ports_per_node

    @property
    def _uplinks(self) -> int:
        if self.spec.routing == "adaptive":
            return 1
        return self.spec.uplinks or self.ports_per_leaf

    def link_gbps(self, port_gbps: Fraction) -> Fraction:
        """Return the bandwidth of one link between switches, from that of a port."""
        whole = port_gbps * self.ports_per_leaf / self.spec.oversubscription
        if self.spec.topology == "dragonfly":
            return whole / max(self.num_leaves - 1, 1)
        return whole / self._uplinks

    def leaf_of(self, ports: Ports) -> Ports:
        """Return the switch that each port leads to; ports are numbered node by node."""
        nodes, places = np.divmod(ports, self.ports_per_node)
        pods: Ports = nodes // self.spec.nodes
        return pods * self.ports_per_node + places if self.spec.ports == "rail" else pods

    def ends(self, network: int) -> list[tuple[int, int]]:
        """Return (from, to) of every link: leaf ``k`` is ``network - 1 - k``."""
        leaves = [network - 1 - leaf for leaf in range(self.num_leaves)]
        if len(leaves) == 1:
            return []
        if self.spec.topology == "dragonfly":
            return [(src, dst) for src in leaves for dst in leaves if src != dst]
        ups = [(leaf, network) for leaf in leaves for _ in range(self._uplinks)]
        return ups + [(above, leaf) for leaf, above in ups]

    def hops(self, src_ports: Ports, dst_ports: Ports) -> list[Ports]:
        """Return the links between the switches of ports; -1 where both have the same one."""
        src, dst = self.leaf_of(src_ports), self.leaf_of(dst_ports)
        stays = src == dst
        if self.spec.topology == "dragonfly":
            return [np.where(stays, _NONE, src * (self.num_leaves - 1) + dst - (dst > src))]
        count = self._uplinks
        which = dst_ports % count
        first_down = self.num_leaves * count
        return [
            np.where(stays, _NONE, src * count + which),
            np.where(stays, _NONE, first_down + dst * count + which),
        ]
