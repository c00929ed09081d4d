"""Which bursts several loads of a kernel have in common (docs/model/cache.md).

A kernel that turns pairs of numbers loads each tile three times: as it is, and each half of its
pairs; one that takes the largest of nine neighbours loads nine tiles, of which nearly all is the
same. The first load that needs a burst brings it to the cache, where the others find it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    DmaRead,
    DmaWrite,
    Predicate,
    access_of,
    axis_dim,
    distinct_values,
    loop_dim,
)
from kernbench.dtypes import Array
from kernbench.kernel_time.program.timed_plan import CommandSite

_MOST_ELEMENTS = 1 << 16
"""The most elements of a load whose addresses are listed: those of as many programs in a row as
have them."""
_MOST_OF_A_PROGRAM = 1 << 18
"""More of one program, in all iterations of its loops, are not listed."""


def common_shares(
    sites: Sequence[CommandSite],
    num_programs: int,
    width: int,
    burst_bytes: int,
    room: int,
    *,
    alike: bool = True,
    streams_miss: bool = False,
) -> dict[int, Fraction]:
    """Return by site which share of its bursts HBM moves, where other loads move some of them.

    ``sites`` are all that move bytes, ``alike`` says whether programs go around loops equally
    often. Loads of one tensor are held against each other for programs in the middle of those that
    there are; ``width`` of them run at a time. Where all that these move fits in ``room``, the
    cache still has what an earlier loop has loaded; else loads in the same loops are compared, in
    one iteration. Loads that stream find nothing where they miss. Addresses and masks that are data
    are left out.
    """
    moved = sum(_num_bytes(site) for site in sites)
    stays = alike and moved * min(width, num_programs) <= room
    together: dict[tuple[int, bool, tuple[int, ...]], list[CommandSite]] = {}
    for site in sites:
        command = site.command
        if not isinstance(command, DmaRead) or (streams_miss and command.streams):
            continue
        if site.gather is None and (command.mask is None or isinstance(command.mask, Predicate)):
            in_all = stays and _num_elements(site) <= _MOST_OF_A_PROGRAM
            loops = () if in_all else tuple(loop.loop_id for loop in site.loops)
            together.setdefault((command.source.param, in_all, loops), []).append(site)
    shares: dict[int, Fraction] = {}
    for (_, in_all, _), compared in together.items():
        if len(compared) < 2:
            continue
        largest = max(_num_elements(command_site, in_all=in_all) for command_site in compared)
        count = max(1, min(_MOST_ELEMENTS // max(largest, 1), width, num_programs))
        positions = np.arange(count) + (num_programs - count) // 2
        bursts = [
            _bursts(command_site, positions, burst_bytes, in_all) for command_site in compared
        ]
        apart, once = sum(map(len, bursts)), len(distinct_values(np.concatenate(bursts)))
        if once < apart:
            shares.update((command_site.index, Fraction(once, apart)) for command_site in compared)
    return shares


def _num_bytes(site: CommandSite) -> int:
    """Return how many bytes a program moves, in all iterations of its loops."""
    itemsize: int = _access_of(site).dtype.itemsize
    return _num_elements(site) * itemsize


def _num_elements(site: CommandSite, *, in_all: bool = True) -> int:
    """Return how many elements a program moves, in all iterations of its loops or in one."""
    trips = [loop.trip_count for loop in site.loops] if in_all else []
    return math.prod((*_access_of(site).shape, *trips))


def _access_of(site: CommandSite) -> Access:
    assert isinstance(site.command, DmaRead | DmaWrite | Atomic)
    return access_of(site.command)


def _bursts(site: CommandSite, positions: Array, burst_bytes: int, in_all: bool) -> Array:
    """Return the bursts that programs at some positions load in all or in first iterations."""
    command = site.command
    assert isinstance(command, DmaRead)
    offset, held = command.source.offset, command.mask
    trips = {loop_dim(loop.loop_id): loop.trip_count for loop in site.loops}
    if not in_all:
        for dim in trips:
            offset = offset.at(dim, 0)
            if isinstance(held, Predicate):
                held = held.at(dim, 0)
        trips = {}
    sizes = dict(sorted(trips.items()))
    sizes |= {axis_dim(axis): size for axis, size in enumerate(command.source.shape)}
    dims, shape = (PROGRAM, *sizes), (len(positions), *sizes.values())
    starts = np.broadcast_to(offset.take_programs(positions).dense(dims), shape)
    if isinstance(held, Predicate):
        starts = starts[np.broadcast_to(held.take_programs(positions).dense(dims), shape)]
    return distinct_values((starts // burst_bytes).ravel())
