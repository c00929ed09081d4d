"""How SIPs are joined: the directed links of a topology, and the route between two SIPs.

Routes are deterministic shortest ones, worked out from the two numbers when they are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Protocol

SWITCH = -1
"""Stands for the switch where a link's end is not a SIP.

With several nodes, the switch of node k is ``SWITCH - k``, and the network between N nodes is
``SWITCH - N``.
"""

Ends = tuple[int, int]


class Topology(Protocol):
    """A numbering of links and a way from each SIP to each other."""

    def ends(self) -> list[Ends]:
        """Return (source SIP, destination SIP) of every link, in order of link index."""

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        """Return the links that lead from one SIP to another one."""


class Ring:
    """Each SIP is joined to the next and the one before. The shorter way; ties go clockwise."""

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

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        count = self.num_sips
        if count == 2:
            return (src_sip,)
        ahead = (dst_sip - src_sip) % count
        if ahead <= count - ahead:
            return tuple((src_sip + hop) % count for hop in range(ahead))
        return tuple(count + (src_sip - hop) % count for hop in range(count - ahead))


class OneWayRing:
    """Each SIP is joined to the next one only."""

    def __init__(self, num_sips: int) -> None:
        self.num_sips = num_sips

    def ends(self) -> list[Ends]:
        count = self.num_sips
        return [] if count == 1 else [(sip, (sip + 1) % count) for sip in range(count)]

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        count = self.num_sips
        return tuple((src_sip + hop) % count for hop in range((dst_sip - src_sip) % count))


class Grid:
    """A mesh, or with ``wraps`` a torus, of any number of axes; the last axis is x.

    SIPs are numbered along x first. Routes go along x, then along the axis before it, and so on;
    a torus goes the shorter way round, ties upwards.
    """

    def __init__(self, shape: tuple[int, ...], wraps: bool = False) -> None:
        self.shape, self.wraps = shape, wraps
        self._strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self._index = {ends: index for index, ends in enumerate(self.ends())}

    def ends(self) -> list[Ends]:
        found: list[Ends] = []
        for sip in range(prod(self.shape)):
            for axis in reversed(range(len(self.shape))):
                # A ring of two along an axis is one wire, of one not even that.
                towards = {self._next(sip, axis, 1): None, self._next(sip, axis, -1): None}
                found += [(sip, other) for other in towards if other not in (None, sip)]
        return found

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        stops = [src_sip]
        for axis in reversed(range(len(self.shape))):
            here, there = self._place(src_sip, axis), self._place(dst_sip, axis)
            for _ in range(self._distance(here, there, axis)):
                following = self._next(stops[-1], axis, self._direction(here, there, axis))
                assert following is not None
                stops.append(following)
        return tuple(self._index[ends] for ends in pairwise(stops))

    def _place(self, sip: int, axis: int) -> int:
        return sip // self._strides[axis] % self.shape[axis]

    def _direction(self, here: int, there: int, axis: int) -> int:
        if not self.wraps:
            return 1 if there > here else -1
        ahead = (there - here) % self.shape[axis]
        return 1 if 2 * ahead <= self.shape[axis] else -1

    def _distance(self, here: int, there: int, axis: int) -> int:
        if not self.wraps:
            return abs(there - here)
        ahead = (there - here) % self.shape[axis]
        return min(ahead, self.shape[axis] - ahead)

    def _next(self, sip: int, axis: int, by: int) -> int | None:
        place, count = self._place(sip, axis), self.shape[axis]
        if not self.wraps and not 0 <= place + by < count:
            return None
        return sip + ((place + by) % count - place) * self._strides[axis]


class Graph:
    """Wires between any pairs of SIPs, each in both directions; fewest hops, ties the first."""

    def __init__(self, num_sips: int, edges: Sequence[Ends]) -> None:
        self.num_sips = num_sips
        self._ends = [ends for src, dst in edges for ends in ((src, dst), (dst, src))]
        self._from: dict[int, dict[int, int]] = {}
        """By SIP, the link by which each other SIP is reached on the way from it."""

    def ends(self) -> list[Ends]:
        return self._ends

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        reached = self._reached(src_sip)
        links: list[int] = []
        here = dst_sip
        while here != src_sip:
            links.append(reached[here])
            here = self._ends[reached[here]][0]
        return tuple(reversed(links))

    def cut_off(self) -> list[int]:
        """Return the SIPs that no wires lead to from SIP 0."""
        reached = self._reached(0)
        return [sip for sip in range(1, self.num_sips) if sip not in reached]

    def _reached(self, src_sip: int) -> dict[int, int]:
        if src_sip not in self._from:
            reached: dict[int, int] = {}
            queue = deque([src_sip])
            while queue:
                here = queue.popleft()
                for link, (src, dst) in enumerate(self._ends):
                    if src == here and dst != src_sip and dst not in reached:
                        reached[dst] = link
                        queue.append(dst)
            self._from[src_sip] = reached
        return self._from[src_sip]


class FullyConnected:
    """A link from every SIP to every other one."""

    def __init__(self, num_sips: int) -> None:
        self.num_sips = num_sips

    def ends(self) -> list[Ends]:
        every = range(self.num_sips)
        return [(src, dst) for src in every for dst in every if src != dst]

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        return (src_sip * (self.num_sips - 1) + dst_sip - (dst_sip > src_sip),)


class Switch:
    """One link from every SIP to a switch that never blocks, and one back."""

    def __init__(self, num_sips: int) -> None:
        self.num_sips = num_sips

    def ends(self) -> list[Ends]:
        if self.num_sips == 1:
            return []
        up = [(sip, SWITCH) for sip in range(self.num_sips)]
        return up + [(SWITCH, sip) for sip in range(self.num_sips)]

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        return (src_sip, self.num_sips + dst_sip)


class TwoLevels:
    """Equal nodes, each with the topology ``inner``, and links of a second level between them.

    With an ``outer`` topology the SIPs of one place in all nodes are joined by one of their own (a
    rail): a route takes the rail of its source, then the links inside the node. Without one, every
    SIP has a link to a network that never blocks.
    """

    def __init__(
        self, inner: Topology, sips_per_node: int, num_nodes: int, outer: Topology | None
    ) -> None:
        self.inner, self.outer = inner, outer
        self.sips_per_node, self.num_nodes = sips_per_node, num_nodes
        self._inner_ends = inner.ends()
        self._outer_ends = [] if outer is None else outer.ends()
        self.first_outer_link = num_nodes * len(self._inner_ends)

    def ends(self) -> list[Ends]:
        size, num_sips = self.sips_per_node, self.sips_per_node * self.num_nodes
        found = [
            (_in_node(src, node, size), _in_node(dst, node, size))
            for node in range(self.num_nodes)
            for src, dst in self._inner_ends
        ]
        if self.outer is None:
            network = SWITCH - self.num_nodes
            found += [(sip, network) for sip in range(num_sips)]
            return found + [(network, sip) for sip in range(num_sips)]
        return found + [
            (src * size + place, dst * size + place)
            for place in range(size)
            for src, dst in self._outer_ends
        ]

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        src_node, src_place = divmod(src_sip, self.sips_per_node)
        dst_node, dst_place = divmod(dst_sip, self.sips_per_node)
        inner = () if src_place == dst_place else self.inner.route(src_place, dst_place)
        inside = tuple(dst_node * len(self._inner_ends) + link for link in inner)
        if src_node == dst_node:
            return inside
        if self.outer is None:
            up = self.first_outer_link + src_sip
            return up, self.first_outer_link + self.sips_per_node * self.num_nodes + dst_sip
        first = self.first_outer_link + src_place * len(self._outer_ends)
        return tuple(first + link for link in self.outer.route(src_node, dst_node)) + inside


def _in_node(end: int, node: int, sips_per_node: int) -> int:
    """Return an end of a node's topology as the whole machine numbers it."""
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
