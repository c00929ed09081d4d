"""Where the transfers of a round travel, hop by hop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

import numpy as np
import numpy.typing as npt

from kernbench.collectives import Part, Step
from kernbench.errors import UsageError
from kernbench.hardware import NO_LINK, Machine

Times = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class RouteHop:
    """The transfers that take a link at the same place of their routes."""

    who: Positions | None
    """Which of the round's transfers they are; None for all of them."""
    links: Positions
    """The local link of each."""
    counts: Positions
    """How many take each link."""
    crowded: bool
    """Whether two of them take the same link."""
    takes_all: bool
    """Whether every transfer of the round takes one, and every link of the plan is taken once."""


@dataclass(frozen=True, slots=True, eq=False)
class Wires:
    """The transfers of a round: one entry each, in the order of the steps."""

    src: Positions
    dst: Positions
    legs: tuple[tuple[Part, Positions, Positions], ...]
    """The same in pieces of one part each: the part, senders and receivers."""
    ahead_ps: Times | None
    """Latency of links before the first one that carries the transfer; None where there is none."""
    at_second: Positions | None
    """Whose first link is the second of its route; None if there is none."""
    not_taken_in: Positions | None
    """Who ends in a switch; None if there is none."""
    by_receiver: Positions | None
    """All of them, receiver by receiver; None for a round of one step, where no SIP sends or
    receives twice."""


def build_wires(steps: Sequence[Step], machine: Machine, sips: Positions) -> Wires:
    """Return the wires of concurrent steps."""
    legs = [
        (part, *(_joined([getattr(step, end) for step in run]) for end in ("src", "dst")))
        for part, run in ((part, list(run)) for part, run in groupby(steps, lambda item: item.part))
    ]
    src, dst = (_joined([leg[end] for leg in legs]) for end in (1, 2))
    parts = np.repeat([leg[0] for leg in legs], [len(leg[1]) for leg in legs])
    down, up = (np.flatnonzero(parts == part) for part in ("down", "up"))
    ahead = None
    if len(down):
        ahead = np.zeros(len(src), dtype=np.int64)
        latency = np.array([link.latency_ps for link in machine.links])
        ups, _ = _through_the_switch(machine, sips[src[down]], sips[dst[down]])
        ahead[down] = latency[ups]
    return Wires(
        src,
        dst,
        tuple(legs),
        ahead,
        down if len(down) else None,
        up if len(up) else None,
        None if len(steps) == 1 else np.argsort(dst, kind="stable"),
    )


def hops_of(wires: Wires, machine: Machine, sips: Positions) -> Iterator[Positions]:
    """Yield the links that the transfers of a round take first, then second, and so on.

    They are numbered as the machine does; ``NO_LINK`` stands where a route has ended, and where one
    begins with the second link.

    Raises:
        UsageError: A part of a route is asked for where there is no switch.
    """
    pieces = [part_hops(part, src, dst, machine, sips) for part, src, dst in wires.legs]
    if len(pieces) == 1:
        yield from pieces[0]
        return
    ended = [np.full(len(src), NO_LINK) for _, src, _ in wires.legs]
    for links in zip_longest(*pieces):
        yield np.concatenate(
            [none if link is None else link for link, none in zip(links, ended, strict=True)]
        )


def part_hops(
    part: Part, src: Positions, dst: Positions, machine: Machine, sips: Positions
) -> Iterator[Positions]:
    """Yield the links of transfers that take the same part of their routes, as :func:`hops_of`."""
    if part == "whole":
        yield from machine.hops(sips[src], sips[dst])
        return
    # Any other SIP is behind the same switch.
    others = np.where(src == dst, sips[src - 1], sips[dst])
    ups, downs = _through_the_switch(machine, sips[src], others)
    if part == "turn":
        _, downs = _through_the_switch(machine, others, sips[src])
    yield np.full_like(ups, NO_LINK) if part == "down" else ups
    if part != "up":
        yield downs


def _through_the_switch(
    machine: Machine, src_sips: Positions, dst_sips: Positions
) -> tuple[Positions, Positions]:
    """Return the link of every pair that leads to the switch, and the one that leads from it."""
    hops = list(machine.hops(src_sips, dst_sips))
    if len(hops) != 2 or not machine.links_to_switches.issuperset(hops[0].tolist()):
        raise UsageError(
            f"SIPs {src_sips[0]} and {dst_sips[0]} of machine {machine.name} are not behind one "
            "switch, which in_switch needs; take another algorithm"
        )
    return hops[0], hops[1]


def local_hop(links: Positions, local: Positions | None, num_links: int) -> RouteHop:
    """Return a hop of links that the machine numbers; ``local`` gives other numbers to them."""
    who = None
    if len(links) and np.minimum.reduce(links) == NO_LINK:
        who = np.flatnonzero(links != NO_LINK)
        links = links[who]
    here = links if local is None else local[links]
    counts = np.bincount(here, minlength=num_links)
    crowded = bool(len(here) and np.maximum.reduce(counts) > 1)
    takes_all = who is None and not crowded and len(here) == num_links
    return RouteHop(who, here, counts, crowded, takes_all)


def _joined(arrays: list[npt.NDArray[np.integer]]) -> Positions:
    only = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return only.astype(np.intp)
