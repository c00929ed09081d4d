"""Which bytes a launch uses of the tensors behind its pointers, and what of them is cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kernbench.commands import Atomic, DmaRead, DmaWrite, KernelTrace, access_of
from kernbench.kernel_ir import footprints
from kernbench.kernel_time.costs.cache_contents import CacheContents, CachedRanges
from kernbench.kernel_time.costs.shared_cache import SHARES
from kernbench.kernel_time.program.timed_plan import build_program_plan

_NOWHERE = -1 << 62
"""Below all addresses, relative to whatever memory."""


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """The bytes ``[low, high)`` of a pointer parameter's tensor, relative to it."""

    param: int
    low: int
    high: int
    size: int
    """How many of them are used at most: tiles may lie apart."""
    is_loaded: bool
    is_known: bool
    """Whether the addresses are; else only ``size`` says something."""


class KernelOperands(tuple[KernelOperand, ...]):
    """The operands of one kernel, results last; equal only to itself."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __init__(self, _: Iterable[KernelOperand] = ()) -> None:
        self.known = tuple(
            kernel_operand.param for kernel_operand in self if kernel_operand.is_known
        )
        """The parameters whose addresses are known, by operand."""


def kernel_operands(trace: KernelTrace) -> KernelOperands:
    """Return the bytes that a trace uses, by parameter; those that it changes come last."""
    moved: dict[int, int] = {}
    loaded: set[int] = set()
    changed: set[int] = set()
    for group in trace.groups:
        trips = dict(group.trips)
        for site in build_program_plan(group.body, trace.num_slots).sites:
            command = site.command
            if not isinstance(command, DmaRead | DmaWrite | Atomic):
                continue
            access = access_of(command)
            tile_bytes = int(np.prod(access.shape, dtype=np.int64)) * access.dtype.itemsize
            runs = np.ones(len(group.program_ids), dtype=np.int64)
            for loop in site.loops:
                runs *= trips.get(loop.loop_id, loop.trip_count)
            total = tile_bytes * int(runs.sum())
            moved[access.param] = moved.get(access.param, 0) + total
            (loaded if isinstance(command, DmaRead) else changed).add(access.param)
    operands = [
        KernelOperand(
            footprint.param,
            footprint.low,
            footprint.high,
            min(moved[footprint.param], footprint.high - footprint.low)
            if footprint.is_complete
            else moved[footprint.param],
            footprint.param in loaded,
            footprint.is_complete and footprint.param >= 0,
        )
        for footprint in footprints(trace)
    ]
    return KernelOperands(
        sorted(
            operands,
            key=lambda kernel_operand: (kernel_operand.param in changed, kernel_operand.param),
        )
    )


def meet_operands(
    contents: CacheContents, operands: KernelOperands, addresses: Sequence[int]
) -> tuple[int, ...]:
    """Record that a launch uses its operands, results last; return what was cached of them.

    That is a number of steps (``SHARES``) for each operand that is loaded; of others it is 0.
    """
    base = contents.base
    placed = tuple([addresses[param] - base for param in operands.known])
    if contents.steps.num_sips == 1:
        return _meet(contents.own(), operands, placed)
    key = (operands, placed)
    return contents.change(key, lambda ranges: _meet(ranges, operands, placed))  # type: ignore[no-any-return]


def _meet(
    ranges: CachedRanges, operands: KernelOperands, addresses: Sequence[int]
) -> tuple[int, ...]:
    """Do that; ``addresses`` are those of the known operands, in the SIP's memory."""
    used = []
    meet = []
    known = iter(addresses)
    for operand in operands:
        if operand.is_known:
            address = next(known)
            start, end = address + operand.low, address + operand.high
            meet.append(ranges.share_steps(start, end) if operand.is_loaded else 0)
        else:
            # No tensor is there: the bytes only push out others.
            start, end = _NOWHERE - operand.size, _NOWHERE
            meet.append(0)
        used.append((start, end, operand.size))
    for start, end, size in used:
        ranges.touch(start, end, size)
    return tuple(meet)


def cached_shares(
    operands: Iterable[KernelOperand], steps: Iterable[int]
) -> tuple[tuple[int, Fraction], ...]:
    """Return by parameter which share the cache held of it, where it held any."""
    return tuple(
        (operand.param, SHARES[held]) for operand, held in zip(operands, steps, strict=True) if held
    )
