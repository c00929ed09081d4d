"""What programs with different trip counts read together (docs/model/cache.md).

The programs of a wave read a tile once from HBM, however many of them read it and wherever in the
kernel's text they do. Such a tile has no number of its own: programs begin and end elsewhere in a
tensor. So each program's reads at a site are taken as a box, rows of bytes without a gap, and what
a wave reads is the union of its boxes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.commands import (
    PROGRAM,
    UNKNOWN_LINE,
    Access,
    Command,
    DmaRead,
    KernelTrace,
    Loop,
    Predicate,
    ProgramGroup,
    SourceLine,
    aligned,
    distinct,
    distinct_values,
    loop_dim,
    walk,
)
from kernbench.dtypes import Array
from kernbench.kernel_time.costs.fingerprints import fold
from kernbench.kernel_time.costs.shared_cache import stay_for_launch

Share = tuple[int, int]
"""How much comes from HBM, and of how much."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadTogether:
    """What the programs of a launch read from HBM, where it was found for all of them at once."""

    shares: dict[DmaRead, Share]
    room: int
    """What the cache has left for other operands that stay in it for the whole launch."""


def read_together(
    trace: KernelTrace, num_pes: int, room: int | None, *, keeps_parts: bool = False
) -> ReadTogether | None:
    """Return what programs in waves of ``num_pes`` share, None where each has a tile of its own.

    That is where programs go over tiles, or around loops differently often. ``room`` is how many
    bytes stay in the cache for a whole launch, None without a cache; ``keeps_parts`` says whether a
    part of an operand does that is too large. Reads of other forms than boxes are left out.
    """
    if room is None:
        return None
    shares, room = _over_tiles(trace, num_pes, room, keeps_parts)
    if not trips_differ(trace):
        return ReadTogether(shares, room) if shares else None
    families: dict[tuple[int, int], list[_Reads]] = {}
    for group in trace.groups:
        waves = group.program_ids // num_pes
        for command, loops in _reads_of(group.body):
            if command in shares:
                continue
            result = _boxes(command, loops, group, waves)
            if result is not None:
                families.setdefault((command.source.param, result.stride), []).append(result)
    counted = []
    for reads in families.values():
        boxes = _Boxes.of(reads)
        if boxes is not None and boxes.total_bytes:
            counted.append((boxes.distinct_bytes(by_wave=False), boxes, reads))
    stay, room = stay_for_launch(
        room, [once if once < boxes.total_bytes else None for once, boxes, _ in counted]
    )
    for (once, boxes, reads), stays in zip(counted, stay, strict=True):
        missed, read = once, boxes.total_bytes
        if not stays:
            missed = boxes.distinct_bytes(by_wave=True)
        divisor = math.gcd(missed, read)
        for item in reads:
            shares[item.command] = (missed // divisor, read // divisor)
    return ReadTogether(shares, room)


def _over_tiles(
    trace: KernelTrace, num_pes: int, room: int, keeps_parts: bool
) -> tuple[dict[DmaRead, Share], int]:
    """Return what programs share that go over tiles, and what that leaves of ``room``.

    They share their tiles as programs of one tile each do: those that run together, iteration by
    iteration.
    """
    sites: dict[tuple[int, SourceLine], list[tuple[DmaRead, tuple[Loop, ...], ProgramGroup]]] = {}
    for group in trace.groups:
        for command, loops in _reads_of(group.body):
            key = (command.source.param, command.line)
            sites.setdefault(key, []).append((command, loops, group))
    dma_reads: list[tuple[list[DmaRead], _Turns]] = []
    for reads in sites.values():
        depth = max(_tile_loops(command.source, loops) for command, loops, _ in reads)
        counts = [len(g.program_ids) * _num_turns(loops[:depth]) for _, loops, g in reads]
        if depth and sum(counts) <= _MOST_TURNS:
            # The parts of a loop that is cut follow each other.
            begun: Counter[int] = Counter()
            parts = []
            for command, loops, group in reads:
                parts.append(_turns(command, loops, group, depth, num_pes, begun[id(group)]))
                begun[id(group)] += _num_turns(loops[:depth])
            dma_reads.append(([command for command, *_ in reads], _Turns.of(parts)))
    shared = [(commands, turns) for commands, turns in dma_reads if turns.once < turns.total]
    stay, left = stay_for_launch(room, [turns.size_bytes for _, turns in shared])
    part = left // max(stay.count(False), 1) if keeps_parts else 0
    shares: dict[DmaRead, Share] = {}
    for (commands, turns), stays in zip(shared, stay, strict=True):
        lost = 0 if stays else max(turns.size_bytes - part, 0)
        missed = turns.once - -(turns.again - turns.once) * lost // max(turns.size_bytes, 1)
        divisor = math.gcd(missed, turns.total)
        shares |= dict.fromkeys(commands, (missed // divisor, turns.total // divisor))
    return shares, left


_OTHER = 1 << 16
"""Above the numbers of loops that there are."""
_MOST_TURNS = 1 << 22
"""More tiles of all programs are not held against each other."""


@dataclass(frozen=True, slots=True)
class _Turns:
    """What all programs read at one line, a tile in each turn."""

    total: int
    """The tiles of all turns."""
    again: int
    """How many differ among those that are read together."""
    once: int
    """How many differ at all."""
    size_bytes: int

    @staticmethod
    def of(parts: Sequence[tuple[Array, Array, int]]) -> _Turns:
        cells, tiles = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        number = distinct(tiles)[2]
        once = int(number.max(initial=-1)) + 1
        again = len(distinct_values(cells * once + number)) if once else 0
        return _Turns(len(tiles), again, once, once * max(part[2] for part in parts))


def _tile_loops(access: Access, loops: tuple[Loop, ...]) -> int:
    """Return how many of the outermost loops go over tiles of a program's own.

    That is where an address is no sum of what a program has by itself and what an iteration has.
    """
    if access.gather is not None:
        return 0
    together = {dim for dims in access.offset.terms if PROGRAM in dims for dim in dims}
    places = [at for at, loop in enumerate(loops, 1) if loop_dim(loop.loop_id) in together]
    return max(places, default=0)


def _num_turns(loops: Sequence[Loop]) -> int:
    return math.prod(loop.trip_count for loop in loops)


def _turns(
    command: DmaRead,
    loops: tuple[Loop, ...],
    group: ProgramGroup,
    depth: int,
    num_pes: int,
    first: int,
) -> tuple[Array, Array, int]:
    """Return of every turn which others are at the same time, its tile, and a tile's bytes."""
    outer, count = loops[:depth], len(group.program_ids)
    keep = (PROGRAM, *(loop_dim(loop.loop_id) for loop in outer))
    # Loops have other numbers in other groups.
    names = {loop_dim(loop.loop_id): loop_dim(_OTHER + at) for at, loop in enumerate(loops)}
    tiles = np.full((count, *(loop.trip_count for loop in outer)), command.source.offset.const)
    for dims, array in command.source.offset.terms.items():
        kept = tuple(dim for dim in dims if dim in keep)
        named = tuple(dim if dim in keep else names.get(dim, dim) for dim in dims)
        tiles = tiles + aligned(fold(array, named, kept), kept, keep)
    turn = np.arange(_num_turns(outer))
    runs = np.ones((count, len(turn)), dtype=np.bool_)
    trips = dict(group.trips)
    index = np.unravel_index(turn, [loop.trip_count for loop in outer]) if outer else ()
    for loop, at in zip(outer, index, strict=True):
        if loop.loop_id in trips:
            runs &= at < np.reshape(trips[loop.loop_id], (-1, 1))
    waves = group.program_ids // num_pes
    cells = (first + turn) * (int(waves.max(initial=0)) + 1) + waves[:, None]
    size = math.prod(command.source.shape) * command.source.dtype.itemsize
    size *= _num_turns(loops[depth:])
    return cells[runs], tiles.reshape(count, -1)[runs], size


def trips_differ(trace: KernelTrace) -> bool:
    """Return whether programs have different trip counts in a loop of the kernel's text."""
    if any(group.trips for group in trace.groups):
        return True
    known: dict[SourceLine, list[int]] = {}
    for group in trace.groups:
        mine: dict[SourceLine, list[int]] = {}
        for command in walk(group.body):
            if isinstance(command, Loop) and command.line != UNKNOWN_LINE:
                mine.setdefault(command.line, []).append(command.trip_count)
        if any(known.setdefault(line, counts) != counts for line, counts in mine.items()):
            return True
    return False


def _reads_of(
    body: tuple[Command, ...], loops: tuple[Loop, ...] = ()
) -> Iterator[tuple[DmaRead, tuple[Loop, ...]]]:
    for command in body:
        if isinstance(command, Loop):
            yield from _reads_of(command.body, (*loops, command))
        elif isinstance(command, DmaRead):
            yield command, loops


@dataclass(frozen=True, slots=True, eq=False)
class _Reads:
    """What programs read at one site: ``rows`` rows of ``width`` bytes from byte ``start``."""

    command: DmaRead
    stride: int
    """Bytes from row to row; 1 where all bytes follow each other, and each byte is a row."""
    wave: Array
    start: Array
    rows: Array
    width: Array


def _boxes(
    command: DmaRead, loops: tuple[Loop, ...], group: ProgramGroup, waves: Array
) -> _Reads | None:
    """Return what each program reads at a site, None where that is not a box.

    Masks cut off programs that read nothing; what they leave of a tile counts as the whole tile.
    """
    trips = {loop_dim(loop_id): counts for loop_id, counts in group.trips}
    lengths = {
        loop_dim(loop.loop_id): trips.get(loop_dim(loop.loop_id), np.array(loop.trip_count))
        for loop in loops
    }
    steps = _steps(command.source, lengths)
    if steps is None or any(not length.min() for length in lengths.values()):
        return None
    start, evenly = steps
    width, stride, rows = np.array(command.source.dtype.itemsize), 0, np.array(1)
    for step, length in evenly:
        if not stride and step <= width.min():
            width = width + step * (length - 1)
        elif not stride:
            stride, rows = step, length
        elif step % stride == 0 and step // stride <= rows.min():
            rows = rows + step // stride * (length - 1)
        else:
            return None
    if stride and width.max() > stride:
        return None
    if not stride:
        stride, rows, width = 1, width, np.array(1)
    held = np.ones(len(waves), dtype=np.bool_)
    if isinstance(command.mask, Predicate):
        for dims, flags in command.mask.terms.items():
            if dims in ((), (PROGRAM,)):
                held &= flags
    start, rows, width = (
        np.broadcast_to(array, held.shape)[held] for array in (start, rows, width)
    )
    return _Reads(command, stride, waves[held], start, rows, width)


def _steps(
    access: Access, lengths: dict[int, Array]
) -> tuple[Array, list[tuple[int, Array]]] | None:
    """Return each program's lowest byte, its steps, and how often it takes each.

    Steps rise. None where loops and axes do not advance evenly, or not independently.
    """
    if access.gather is not None:
        return None
    start = np.array(access.offset.const)
    numbers: list[tuple[int, Array]] = []
    for dims, array in access.offset.terms.items():
        if dims == (PROGRAM,):
            start = start + array
            continue
        if len(dims) != 1:
            return None
        changes = np.diff(array)
        step = int(changes[0]) if len(changes) else 0
        if (changes != step).any():
            return None
        length = lengths.get(dims[0], np.array(len(array)))
        start = start + array[0] + min(step, 0) * (length - 1)
        if step and length.max() > 1:
            numbers.append((abs(step), length))
    return start, sorted(numbers, key=lambda pair: pair[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
    """Boxes of which any two have equal or disjoint extents along one side."""

    wave: Array
    side: Array
    """The number of that side."""
    length: Array
    """The length of that side."""
    start: Array
    """The start of the other side."""
    stop: Array

    @staticmethod
    def of(reads: Sequence[_Reads]) -> _Boxes | None:
        """Return the boxes of sites of one stride, None where both sides overlap in part."""
        wave, address, rows, width = (
            np.concatenate([getattr(read, name) for read in reads])
            for name in ("wave", "start", "rows", "width")
        )
        stride = reads[0].stride
        origin = _row_start(address % stride, width, stride)
        if origin is None:
            return None
        first, left = np.divmod(address - origin, stride)
        down, across = (first, first + rows), (left, left + width)
        for (low, high), (start, stop) in ((across, down), (down, across)):
            side = _numbered(low, high)
            if side is not None:
                return _Boxes(wave, side, high - low, start, stop)
        return None

    @property
    def total_bytes(self) -> int:
        """How many bytes all of them have, those in several counted for each."""
        return int((self.length * (self.stop - self.start)).sum())

    def distinct_bytes(self, *, by_wave: bool) -> int:
        """Return how many bytes lie in a box, per wave or for the whole launch."""
        if not len(self.start):
            return 0
        apart = self.side
        if by_wave:
            apart = apart + self.wave * (int(apart.max()) + 1)
        # Boxes that have nothing in common are put one behind the other.
        offset = apart * int(self.stop.max() - self.start.min())
        order = np.argsort(offset + self.start, kind="stable")
        start, stop = (offset + self.start)[order], (offset + self.stop)[order]
        reach = np.maximum.accumulate(stop)
        start[1:] = np.maximum(start[1:], reach[:-1])
        return int((np.maximum(stop - start, 0) * self.length[order]).sum())


def _row_start(left: Array, width: Array, stride: int) -> int | None:
    """Return a byte of ``stride`` at which rows can begin so that no box straddles two.

    0 if that is one, else a box's ``left`` after the widest gap. None where each lies in another
    box: the boxes overlap in part from side to side.
    """
    if (left + width <= stride).all():
        return 0
    begins, numbers = np.unique(left, return_inverse=True)
    widest = np.zeros_like(begins)
    np.maximum.at(widest, numbers.reshape(-1), width)
    # Twice around: what ends after the stride continues at its begin.
    ends = np.maximum.accumulate(np.concatenate((begins + widest, begins + widest + stride)))
    gaps = begins + stride - ends[len(begins) - 1 : -1]
    at = int(gaps.argmax())
    return int(begins[at]) if gaps[at] >= 0 else None


def _numbered(low: Array, high: Array) -> Array | None:
    """Return a number for each interval, None where some overlap in part."""
    if not len(low):
        return np.zeros(0, dtype=np.int64)
    base, span = int(low.min()), int(high.max() - low.min()) + 1
    if span.bit_length() > 31:
        # Pairs would not fit into 64 bits; rows of a tensor and bytes of a row do.
        return np.zeros_like(low) if (low == low[0]).all() and (high == high[0]).all() else None
    codes, numbers = np.unique((low - base) * span + (high - base), return_inverse=True)
    lows, highs = np.divmod(codes, span)
    return numbers.reshape(-1) if (highs[:-1] <= lows[1:]).all() else None
