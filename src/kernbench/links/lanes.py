"""Links that a transfer takes side by side, where a library cuts messages into channels.

A ring of NCCL is as many rings as links leave a node, each with its share of every chunk, and each
leaving the node elsewhere: what the plan has as one transfer between nodes takes all of them. On a
mesh inside the node likewise, each ring goes another way round.

Source: NCCL, src/graph/search.cc and src/graph/connect.cc.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kernbench.collectives import Schedule
from kernbench.hardware import Machine
from kernbench.links.wires import Positions, Times


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """What follows the first piece of every chunk."""

    busy_ps: Times
    """The busy time of each link."""
    longest_ps: int
    """The longest time of any link, and of any rank's memory."""


@dataclass(frozen=True, slots=True, eq=False)
class PortLanes:
    """How many links of a node are one to the transfers of a plan, and which."""

    between: int = 1
    """Between nodes."""
    inside: int = 1
    """Inside a node."""
    links: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    """The links between nodes that are taken together: those of one bundle in a row."""
    are_shared: bool = False
    """Whether what a SIP sends may leave by other links than its own."""

    def width(self, between_nodes: bool) -> int:
        """Return how many links carry one transfer."""
        return self.between if between_nodes else self.inside

    def renumbered(self, used: Positions) -> PortLanes:
        """Return the same for links that are numbered by their place in ``used``."""
        links = np.searchsorted(used, self.links)
        return PortLanes(self.between, self.inside, links, self.are_shared)

    def together(self, times: Times) -> Times:
        """Return times by link where each link of a bundle has the latest of all."""
        array = times.copy()
        if len(self.links):
            bundles = self.links.reshape(-1, self.between)
            array[bundles] = times[bundles].max(axis=1)[:, None]
        return array


def lanes_of(schedule: Schedule, machine: Machine, sips: Positions) -> PortLanes:
    """Return the lanes of a schedule whose rank ``i`` is on ``sips[i]``.

    Only machines with a collective library have channels.
    """
    ports = machine.ports_of(sips.astype(np.int64))
    if ports is None or not schedule.steps:
        return PortLanes()
    own = len(np.unique(ports[0])) == len(sips)
    nodes = sips // machine.sips_per_node
    if not schedule.striped or machine.spec.collectives is None or nodes[0] == nodes[-1]:
        return PortLanes(are_shared=not own)
    bundles = [[np.unique(port[nodes == node]) for node in np.unique(nodes)] for port in ports]
    between = min(len(array) for bundle in bundles for array in bundle)
    links = np.concatenate([array[:between] for bundle in bundles for array in bundle])
    inside = 1
    if machine.topology == "fully_connected":
        inside = max(min(int(np.bincount(nodes)[np.unique(nodes)].min()) - 1, 7), 1)
    return PortLanes(between, inside, links, are_shared=True)
