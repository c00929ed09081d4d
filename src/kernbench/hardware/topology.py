"""How SIPs are joined: the directed links of a topology, and the route between two SIPs.

Routes are deterministic shortest ones, worked out from the two numbers when they are asked for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

SWITCH = -1
"""Stands for the switch where a link's end is not a SIP."""

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


class Mesh2d:
    """Rows and columns, no wrap-around; SIP ``row * cols + col``. First along x, then along y."""

    def __init__(self, rows: int, cols: int) -> None:
        self.rows, self.cols = rows, cols
        self._index = {ends: index for index, ends in enumerate(self.ends())}

    def ends(self) -> list[Ends]:
        found: list[Ends] = []
        for row in range(self.rows):
            for col in range(self.cols):
                sip = row * self.cols + col
                neighbours = ((row, col + 1), (row, col - 1), (row + 1, col), (row - 1, col))
                found += [
                    (sip, y * self.cols + x)
                    for y, x in neighbours
                    if 0 <= y < self.rows and 0 <= x < self.cols
                ]
        return found

    def route(self, src_sip: int, dst_sip: int) -> tuple[int, ...]:
        row, col = divmod(src_sip, self.cols)
        to_row, to_col = divmod(dst_sip, self.cols)
        step_x, step_y = (1 if to_col > col else -1), (1 if to_row > row else -1)
        stops = [row * self.cols + x for x in range(col, to_col, step_x)]
        stops += [y * self.cols + to_col for y in range(row, to_row, step_y)]
        stops.append(dst_sip)
        return tuple(self._index[ends] for ends in pairwise(stops))


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


def most_square(count: int) -> tuple[int, int]:
    """Return the rows and columns (rows <= columns) of the most square mesh of ``count`` SIPs.

    >>> most_square(8), most_square(7)
    ((2, 4), (1, 7))
    """
    rows = int(count**0.5)
    while count % rows:
        rows -= 1
    return rows, count // rows
