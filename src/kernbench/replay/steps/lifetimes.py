"""When values of a trace are last read: what can be freed, and which views must be copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernbench.commands import (
    Access,
    Assert,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    KernelTrace,
    Loop,
    Math,
    Operand,
    Print,
    Reduce,
    Tile,
    Transfer,
    access_of,
)
from kernbench.replay.numerics.elementwise import VIEW_OPS
from kernbench.replay.steps.access import Store
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.geometry import Box
from kernbench.replay.steps.sites import Chunks

Range = tuple[int, int]


def only_stored(trace: KernelTrace) -> frozenset[int]:
    """Return the pointer parameters that no command of the trace reads through."""
    read = {c.source.param for c in trace.commands() if isinstance(c, DmaRead)}
    return frozenset(trace.pointer_params) - read


def stored_ranges(stores: Iterable[tuple[Store, Chunks]]) -> dict[int, Range]:
    """Return, by parameter, the range of bytes that its stores fill without gaps.

    Bytes are relative to the parameter's address. Parameters with gaps, or with stores whose
    address depends on data or on a loop, are left out.
    """
    pairs: dict[int, list[Range]] = {}
    irregular: set[int] = set()
    for store, chunks in stores:
        ranges = _ranges(store, chunks)
        if ranges is None:
            irregular.add(store.site.param)
        else:
            pairs.setdefault(store.site.param, []).extend(ranges)
    merged = {p: _joined(ranges) for p, ranges in pairs.items() if p not in irregular and ranges}
    return {param: value for param, value in merged.items() if value is not None}


def _ranges(store: Store, chunks: Chunks) -> list[Range] | None:
    site = store.site
    if store.dynamic or not site.fixed:
        return None
    frame = Frame({}, {}, {})
    ranges: list[Range] = []
    for chunk in range(len(chunks)):
        frame.chunk = chunk
        frame.num_programs = chunks.bounds[chunk + 1] - chunks.bounds[chunk]
        for part in site.geometry(frame).parts:
            pair = _run(part, site.itemsize) if isinstance(part, Box) else None
            if pair is None:
                return None
            ranges.append(pair)
    return ranges


def _run(box: Box, itemsize: int) -> Range | None:
    """Return the byte range of a box, or None if it is not contiguous."""
    dims = zip(box.view_shape, box.view_strides, strict=True)
    length = itemsize
    for count, stride in sorted(((c, s) for c, s in dims if c != 1), key=lambda dim: dim[1]):
        if stride != length:
            return None
        length *= count
    return box.offset, box.offset + length


def _joined(ranges: list[Range]) -> Range | None:
    """Return the union of ranges, or None if it has gaps."""
    first, *rest = sorted(ranges)
    low, high = first
    for start, end in rest:
        if start > high:
            return None
        high = max(high, end)
    return low, high


Body = tuple[Command, ...]


def operands(command: Command) -> Iterator[Operand]:
    """Yield the operands of a command; a loop's are the values that it carries in and out."""
    if isinstance(command, DmaRead | DmaWrite | Atomic):
        yield from _moved(command)
    elif isinstance(command, Gemm):
        yield from (command.a, command.b)
        if command.acc is not None:
            yield command.acc
    elif isinstance(command, Loop):
        for carried in command.carried:
            yield from (carried.init, carried.yielded)
    elif isinstance(command, Print):
        for value in command.values:
            if not isinstance(value, Access):
                yield value
    elif isinstance(command, Assert):
        yield command.condition
    else:
        yield from command.inputs


def _moved(command: Transfer) -> Iterator[Operand]:
    if isinstance(command, DmaWrite | Atomic):
        yield command.value
    if isinstance(command, Atomic) and command.compare is not None:
        yield command.compare
    access = access_of(command)
    if access.gather is not None:
        yield access.gather
    if isinstance(command.mask, Tile):
        yield command.mask
    if isinstance(command, DmaRead) and command.other is not None:
        yield command.other


def results(command: Command) -> tuple[Tile, ...]:
    """Return the tiles that a command defines for those after it."""
    if isinstance(command, Reduce):
        return command.dsts
    if isinstance(command, Loop):
        return tuple(carried.result for carried in command.carried)
    if isinstance(command, DmaWrite | Print | Assert):
        return ()
    return () if command.dst is None else (command.dst,)


def reads(command: Command) -> Iterator[int]:
    """Yield the slots that a command reads, including those inside of a loop."""
    for operand in operands(command):
        if isinstance(operand, Tile):
            yield operand.slot
    if isinstance(command, Loop):
        for inner in command.body:
            yield from reads(inner)


def freed_after(body: Body, kept: frozenset[int]) -> list[tuple[int, ...]]:
    """Return per command of ``body`` the slots that are dead after it, except ``kept``."""
    last: dict[int, int] = {}
    for index, command in enumerate(body):
        for tile in results(command):
            last[tile.slot] = index
    for index, command in enumerate(body):
        for slot in reads(command):
            if slot in last:
                last[slot] = index
    freed: list[list[int]] = [[] for _ in body]
    for slot, index in last.items():
        if slot not in kept:
            freed[index].append(slot)
    return [tuple(slots) for slots in freed]


_FOREVER = 1 << 60


class Hazards:
    """Finds the parameters that are stored to while a loaded tile is still live.

    A load may be a view of memory; it must be a copy if a store changes that memory before the
    tile's last use. Parameters may point to the same buffer, so replay compares those.
    """

    def __init__(self, body: Body) -> None:
        self._stores: list[tuple[int, int]] = []
        self._last: dict[int, int] = {}
        self._defined: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._flows: dict[int, list[int]] = {}
        self._uses: list[tuple[int, int, tuple[int, ...]]] = []
        self._ends: dict[int, int] = {}
        self._number(body, 0, ())
        for slot, position, loops in self._uses:
            inside = self._defined.get(slot, (0, ()))[1]
            for loop in loops:
                if loop not in inside:
                    # Read again in the next iteration.
                    position = max(position, self._ends[loop])
            self._last[slot] = max(self._last.get(slot, 0), position)

    def _number(self, body: Body, position: int, loops: tuple[int, ...]) -> int:
        for command in body:
            position += 1
            here = position
            if isinstance(command, Loop):
                inner = (*loops, command.loop_id)
                for carried in command.carried:
                    self._defined[carried.arg.slot] = (here, inner)
                    self._flow(carried.init, carried.arg)
                    self._flow(carried.init, carried.result)
                    if isinstance(carried.yielded, Tile):
                        self._last[carried.yielded.slot] = _FOREVER
                position = self._number(command.body, position, inner) + 1
                self._ends[command.loop_id] = position
            if isinstance(command, DmaWrite | Atomic):
                self._stores.append((here, access_of(command).param))
            for tile in results(command):
                self._defined[tile.slot] = (here, loops)
            for operand in operands(command):
                if isinstance(operand, Tile):
                    self._uses.append((operand.slot, position, loops))
                    if isinstance(command, Math) and command.op in VIEW_OPS:
                        self._flow(operand, command.dst)
        return position

    def _flow(self, source: Operand, target: Tile) -> None:
        if isinstance(source, Tile):
            self._flows.setdefault(source.slot, []).append(target.slot)

    def of(self, load: DmaRead) -> tuple[int, ...]:
        """Return the parameters stored to between the load and the last use of its tile."""
        slot = load.dst.slot
        start = self._defined[slot][0]
        last, pending, seen = 0, [slot], set[int]()
        while pending:
            number = pending.pop()
            if number not in seen:
                seen.add(number)
                last = max(last, self._last.get(number, 0))
                pending += self._flows.get(number, [])
        return tuple({param for where, param in self._stores if start < where <= last})
