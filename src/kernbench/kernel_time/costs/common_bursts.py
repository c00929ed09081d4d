"""Which bursts several loads of a kernel have in common (ADR-0202).

A kernel that turns pairs of numbers loads each tile three times: as it is, and each half of its
pairs; one that takes the largest of nine neighbours loads nine tiles, of which nearly all is the
same. The first load that needs a burst brings it to the cache, where the others find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import PROGRAM, DmaRead, Predicate, axis_dim, loop_dim
from kernbench.kernel_time.program.timed_plan import CommandSite

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 1 << 16
"""Of a load whose addresses are listed: those of so many programs in a row as have them."""


def common_shares(
    sites: Sequence[CommandSite], num_programs: int, width: int, burst_bytes: int
) -> dict[int, Fraction]:
    """Return by site which share of its bursts HBM moves, where other loads move some of them.

    Loads of one tensor in the same loops are held against each other, in an iteration of each loop,
    for programs in the middle of those that there are; ``width`` of them run at a time. Addresses
    and masks that are data are left out.
    """
    together: dict[tuple[int, ...], list[CommandSite]] = {}
    for site in sites:
        command = site.command
        if isinstance(command, DmaRead) and site.gather is None and _is_known(command.mask):
            key = (command.source.param, *(loop.loop_id for loop in site.loops))
            together.setdefault(key, []).append(site)
    shares: dict[int, Fraction] = {}
    for alike in together.values():
        if len(alike) < 2:
            continue
        largest = max(int(np.prod(_shape(each), dtype=np.int64)) for each in alike)
        count = max(1, min(_MOST_ELEMENTS // max(largest, 1), width, num_programs))
        positions = np.arange(count) + (num_programs - count) // 2
        found = [_bursts(each, positions, burst_bytes) for each in alike]
        apart, once = sum(map(len, found)), len(np.unique(np.concatenate(found)))
        if once < apart:
            shares.update((each.index, Fraction(once, apart)) for each in alike)
    return shares


def _is_known(mask: object) -> bool:
    return mask is None or isinstance(mask, Predicate)


def _shape(site: CommandSite) -> tuple[int, ...]:
    assert isinstance(site.command, DmaRead)
    return site.command.source.shape


def _bursts(site: CommandSite, positions: Array, burst_bytes: int) -> Array:
    """Return the bursts that programs at some positions load in the first iterations of loops."""
    command = site.command
    assert isinstance(command, DmaRead)
    offset, held = command.source.offset, command.mask
    for loop in site.loops:
        offset = offset.at(loop_dim(loop.loop_id), 0)
        if isinstance(held, Predicate):
            held = held.at(loop_dim(loop.loop_id), 0)
    axes = range(len(command.source.shape))
    dims = (PROGRAM, *(axis_dim(axis) for axis in axes))
    shape = (len(positions), *command.source.shape)
    starts = np.broadcast_to(offset.take_programs(positions).dense(dims), shape)
    if isinstance(held, Predicate):
        starts = starts[np.broadcast_to(held.take_programs(positions).dense(dims), shape)]
    return np.unique(starts // burst_bytes)
