"""How SIPs are joined: the directed links of a topology, and the route between two SIPs.

Routes are deterministic shortest ones, worked out from the two numbers when they are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernbench.hardware.fabrics import Leaves

Places = npt.NDArray[np.int64]

NO_LINK = -1
"""In place of a link, where a route is shorter than others."""

SWITCH = -1
"""Stands for the switch where a link's end is not a SIP.

With several nodes, the switch of node k is ``SWITCH - k``, and the network between N nodes is
``SWITCH - N``.
"""

Ends = tuple[int, int]


class Topology(Protocol):
    """A numbering of links, and a route from each SIP to each other."""

    def ends(self) -> list[Ends]:
        """Return (source SIP, destination SIP) of every link, in order of link index."""

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        """Yield the first link of the route of every pair, then the second, ...

        ``NO_LINK`` after its end.
        """


class Ring:
    """Each SIP is joined to both neighbours; routes take the shorter way, ties go clockwise."""

    def __init__(self, num_sips: int) -> None:
        self.num_sips = num_sips

    def ends(self) -> list[Ends]:
        count = self.num_sips
        if count == 1:
            return []
        if count == 2:
            return [(0, 1), (1, 0)]
        clockwise = [(sip, (sip + 1) % count) for sip in range(count)]
        return clockwise + [(sip, (sip - 1) % count) for sip in range(count)]

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        count = self.num_sips
        if count <= 2:
            yield np.where(src_sips == dst_sips, NO_LINK, src_sips)
            return
        ahead = (dst_sips - src_sips) % count
        clockwise = ahead <= count - ahead
        # Twice around each way, so that nobody has to ask where the ring begins anew.
        around = np.tile(np.arange(count), 2)
        links = np.concatenate([around, count + around])
        at = np.where(clockwise, src_sips, 3 * count + src_sips)
        yield from _along(
            links, at, np.where(clockwise, 1, -1), np.where(clockwise, ahead, count - ahead)
        )


class OneWayRing:
    """Each SIP is joined to the next one only."""

    def __init__(self, num_sips: int) -> None:
        self.num_sips = num_sips

    def ends(self) -> list[Ends]:
        count = self.num_sips
        return [] if count == 1 else [(sip, (sip + 1) % count) for sip in range(count)]

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        links = np.tile(np.arange(self.num_sips), 2)
        yield from _along(
            links, src_sips, np.ones_like(src_sips), (dst_sips - src_sips) % self.num_sips
        )


class Grid:
    """A mesh, or with ``wraps`` a torus, of any number of axes; the last axis is x.

    SIPs are numbered along x first. Routes go along x, then along the axis before it, and so on;
    a torus goes the shorter way round, ties upwards.
    """

    def __init__(self, shape: tuple[int, ...], wraps: bool = False) -> None:
        self.shape, self.wraps = shape, wraps
        self._strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self._index = {ends: index for index, ends in enumerate(self.ends())}
        # By port (an axis and a direction; the last leads nowhere) and SIP: the link, and its end.
        num_ports, sips = 2 * len(shape) + 1, np.arange(prod(shape))
        self._links = np.full((num_ports, len(sips)), NO_LINK)
        self._ends = np.tile(sips, (num_ports, 1))
        for port in range(num_ports - 1):
            for sip in sips.tolist():
                other = self._next(sip, port // 2, 1 if port % 2 else -1)
                if other is not None and other != sip:
                    self._links[port, sip] = self._index[sip, other]
                    self._ends[port, sip] = other

    def ends(self) -> list[Ends]:
        pairs: list[Ends] = []
        for sip in range(prod(self.shape)):
            for axis in reversed(range(len(self.shape))):
                # A ring of two along an axis is one wire, of one not even that.
                towards = {self._next(sip, axis, 1): None, self._next(sip, axis, -1): None}
                pairs += [(sip, other) for other in towards if other not in (None, sip)]
        return pairs

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        # Per axis, in the order in which routes go along them: the port, and the hop that ends it.
        ports, ends = [], []
        so_far = np.zeros_like(src_sips)
        for axis in reversed(range(len(self.shape))):
            count, stride = self.shape[axis], self._strides[axis]
            here, there = src_sips // stride % count, dst_sips // stride % count
            ahead = (there - here) % count
            upwards = 2 * ahead <= count if self.wraps else there > here
            distance = np.minimum(ahead, count - ahead) if self.wraps else abs(there - here)
            so_far = so_far + distance
            ports.append(2 * axis + upwards)
            ends.append(so_far)
        at = src_sips
        for hop in range(int(so_far.max(initial=0))):
            port = np.full_like(src_sips, 2 * len(self.shape))
            for along, end in zip(reversed(ports), reversed(ends), strict=True):
                port = np.where(hop < end, along, port)
            yield self._links[port, at]
            at = self._ends[port, at]

    def _next(self, sip: int, axis: int, by: int) -> int | None:
        count = self.shape[axis]
        place = sip // self._strides[axis] % count
        if not self.wraps and not 0 <= place + by < count:
            return None
        return sip + ((place + by) % count - place) * self._strides[axis]


class LinkGraph:
    """Wires between any pairs of SIPs, in both directions; routes have the fewest hops."""

    def __init__(self, num_sips: int, edges: Sequence[Ends]) -> None:
        self.num_sips = num_sips
        self._ends = [ends for src, dst in edges for ends in ((src, dst), (dst, src))]
        self._into: list[list[int]] = [[] for _ in range(num_sips)]
        """The links that end at each SIP."""
        for link, (_, dst) in enumerate(self._ends):
            self._into[dst].append(link)
        self._towards: dict[int, list[int]] = {}
        """The first link of the route from every other SIP, by destination SIP."""

    def ends(self) -> list[Ends]:
        return self._ends

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        targets, which = np.unique(dst_sips, return_inverse=True)
        towards = np.array([self._all_towards(target) for target in targets.tolist()])
        end = np.array([dst for _, dst in self._ends])
        at = src_sips
        while (at != dst_sips).any():
            links = towards[which, at]
            yield links
            at = np.where(links == NO_LINK, at, end[links])

    def cut_off(self) -> list[int]:
        """Return the SIPs that cannot be reached from SIP 0."""
        towards = self._all_towards(0)
        return [sip for sip in range(1, self.num_sips) if towards[sip] == NO_LINK]

    def _all_towards(self, dst_sip: int) -> list[int]:
        towards = self._towards.get(dst_sip)
        if towards is None:
            towards = self._towards[dst_sip] = [NO_LINK] * self.num_sips
            queue = deque([dst_sip])
            while queue:
                for link in self._into[queue.popleft()]:
                    src = self._ends[link][0]
                    if src != dst_sip and towards[src] == NO_LINK:
                        towards[src] = link
                        queue.append(src)
        return towards


class FullyConnected:
    """A link from every SIP to every other one."""

    def __init__(self, num_sips: int) -> None:
        self.num_sips = num_sips

    def ends(self) -> list[Ends]:
        every = range(self.num_sips)
        return [(src, dst) for src in every for dst in every if src != dst]

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        links = src_sips * (self.num_sips - 1) + dst_sips - (dst_sips > src_sips)
        yield np.where(src_sips == dst_sips, NO_LINK, links)


class Switch:
    """One link from every SIP to a switch that never blocks, and one back."""

    def __init__(self, num_sips: int) -> None:
        self.num_sips = num_sips

    def ends(self) -> list[Ends]:
        if self.num_sips == 1:
            return []
        up = [(sip, SWITCH) for sip in range(self.num_sips)]
        return up + [(SWITCH, sip) for sip in range(self.num_sips)]

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        stays = src_sips == dst_sips
        yield np.where(stays, NO_LINK, src_sips)
        yield np.where(stays, NO_LINK, self.num_sips + dst_sips)


class TwoLevels:
    """Equal nodes, each with the topology ``inner``, and links of a second level between them.

    With an ``outer`` topology the SIPs of one place in all nodes are joined by one of their own (a
    rail): a route takes the rail of its source, then the links inside the node. Without one, a node
    has ports to a network: one for every SIP, or one for several in a row. The network never
    blocks, or has ``leaves``, whose links all share.
    """

    def __init__(
        self,
        inner: Topology,
        sips_per_node: int,
        num_nodes: int,
        outer: Topology | None,
        ports_per_node: int | None = None,
        leaves: Leaves | None = None,
    ) -> None:
        self.inner, self.outer = inner, outer
        self._ports = ports_per_node or sips_per_node
        self.sips_per_node, self.num_nodes = sips_per_node, num_nodes
        self._inner_ends = inner.ends()
        self._outer_ends = [] if outer is None else outer.ends()
        self.first_outer_link = num_nodes * len(self._inner_ends)
        self.leaves = leaves
        rails = sips_per_node * len(self._outer_ends)
        ports = 2 * self._ports * num_nodes if outer is None else 0
        self.first_leaf_link = self.first_outer_link + rails + ports

    def ends(self) -> list[Ends]:
        size = self.sips_per_node
        nodes = [
            (_in_node(src, node, size), _in_node(dst, node, size))
            for node in range(self.num_nodes)
            for src, dst in self._inner_ends
        ]
        if self.outer is None:
            network = SWITCH - self.num_nodes
            # The first of the SIPs that share a port stands for it.
            firsts = range(0, size * self.num_nodes, size // self._ports)
            if self.leaves is None:
                nodes += [(sip, network) for sip in firsts]
                return nodes + [(network, sip) for sip in firsts]
            leaves = network - 1 - self.leaves.leaf_of(np.arange(len(firsts)))
            ups = list(zip(firsts, leaves.tolist(), strict=True))
            return [*nodes, *ups, *((leaf, sip) for sip, leaf in ups), *self.leaves.ends(network)]
        return nodes + [
            (src * size + place, dst * size + place)
            for place in range(size)
            for src, dst in self._outer_ends
        ]

    def ports_of(self, sips: Places) -> tuple[Places, Places]:
        """Return the links of SIPs to the network, and from there."""
        ports = sips // (self.sips_per_node // self._ports)
        first_down = self.first_outer_link + self._ports * self.num_nodes
        return self.first_outer_link + ports, first_down + ports

    def _outside(self, src_sips: Places, dst_sips: Places) -> list[Places]:
        """Return the links of routes over the network."""
        (ups, _), (_, downs) = self.ports_of(src_sips), self.ports_of(dst_sips)
        if self.leaves is None:
            return [ups, downs]
        shared = self.sips_per_node // self._ports
        between = self.leaves.hops(src_sips // shared, dst_sips // shared)
        return [
            ups,
            *(np.where(it == NO_LINK, NO_LINK, self.first_leaf_link + it) for it in between),
            downs,
        ]

    def hops(self, src_sips: Places, dst_sips: Places) -> Iterator[Places]:
        src_nodes, src_places = np.divmod(src_sips, self.sips_per_node)
        dst_nodes, dst_places = np.divmod(dst_sips, self.sips_per_node)
        goes_out = src_nodes != dst_nodes
        first_inside = dst_nodes * len(self._inner_ends)
        inner = (
            np.where(links == NO_LINK, NO_LINK, first_inside + links)
            for links in self.inner.hops(src_places, dst_places)
        )
        if self.outer is None:
            outer = self._outside(src_sips, dst_sips) if goes_out.any() else []
            none = np.full_like(src_sips, NO_LINK)
            for inside, outside in zip_longest(inner, outer, fillvalue=none):
                yield np.where(goes_out, outside, inside)
            return
        # Routes leave their rails at different hops, so what follows has to wait for them.
        following = np.array([*inner, np.full_like(src_sips, NO_LINK)])
        first = self.first_outer_link + src_places * len(self._outer_ends)
        done = np.zeros_like(src_sips)
        everyone = np.arange(len(src_sips))
        rails = self.outer.hops(src_nodes, dst_nodes)
        while True:
            rail = next(rails, None)
            outside = np.full_like(src_sips, NO_LINK) if rail is None else rail
            inside = following[np.minimum(done, len(following) - 1), everyone]
            on_rail = outside != NO_LINK
            links = np.where(on_rail, first + outside, inside)
            if rail is None and (links == NO_LINK).all():
                return
            yield links
            done += ~on_rail


def _along(links: Places, at: Places, by: Places, distance: Places) -> Iterator[Places]:
    """Yield what lies at ``at``, ``at + by``, ... of ``links``, each as often as its distance."""
    least, at = int(distance.min(initial=0)), at.copy()
    for hop in range(int(distance.max(initial=0))):
        link = links[at] if hop < least else np.where(hop < distance, links[at], NO_LINK)
        yield link
        at += by


def _in_node(end: int, node: int, sips_per_node: int) -> int:
    """Return the machine-wide number of an end of a node's link."""
    return end - node if end <= SWITCH else node * sips_per_node + end


def most_even(count: int, num_axes: int) -> tuple[int, ...]:
    """Return the most even shape of ``count`` SIPs, smaller numbers first.

    >>> most_even(8, 2), most_even(7, 2), most_even(24, 3)
    ((2, 4), (1, 7), (2, 3, 4))
    """
    if num_axes == 1:
        return (count,)
    first = next(size for size in range(round(count ** (1 / num_axes)), 0, -1) if count % size == 0)
    return tuple(sorted((first, *most_even(count // first, num_axes - 1))))
