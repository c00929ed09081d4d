"""A launch whose commands its caller performs, ordered in virtual time with other launches.

A strand of such a launch hands out what an operation does in *parts*: one access to memory each,
or a run of commands that touch none. What was read on the way is kept, so that a program that
waits for memory to change can be told when it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.commands import Atomic, Command, DmaRead, DmaWrite, Loop, Transfer, access_of, walk
from kernbench.dtypes import Array
from kernbench.interleaved.execution import lanes
from kernbench.interleaved.recording import Recording
from kernbench.kernel_ir import Module, Op, Region
from kernbench.memory import Buffer

if TYPE_CHECKING:
    from kernbench.interleaved.strand import Strand


Commands = tuple[Command, ...]

_MOST_SNAPSHOT = 256


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``[low, high)`` of a buffer that an access may touch."""

    buffer: Buffer
    low: int
    high: int
    writes: bool

    def meets(self, other: Span) -> bool:
        """Whether both may touch the same byte."""
        return self.buffer is other.buffer and self.low < other.high and other.low < self.high


@dataclass(frozen=True, slots=True)
class Watched:
    """Bytes that a program has read, and their values then; None if too many to keep."""

    span: Span
    seen: bytes | None

    @property
    def has_changed(self) -> bool:
        """Whether memory has changed since, as far as that is known."""
        return self.seen is None or self.seen != _bytes(self.span)


class Decisions(Recording):
    """The recording where commands are timed as they come: only a count of decisions."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def copy(self) -> Decisions:
        return Decisions(self.count)

    def add(self, program_ids: Array, commands: Commands, decisive: bool) -> None:
        self.count += 1

    def take(self) -> int:
        """Return how many there were since the last call."""
        count, self.count = self.count, 0
        return count

    def enter_loop(self, line: Any) -> None:
        """Loops leave no mark."""

    def next_iteration(self) -> None:
        """Loops leave no mark."""

    def leave_loop(self) -> None:
        """Loops leave no mark."""


def parts_of(commands: Commands) -> list[Commands]:
    """Return commands in parts with at most one access to memory, or one loop with accesses."""
    parts: list[Commands] = []
    plain: list[Command] = []
    for command in commands:
        if not any(isinstance(node, DmaRead | DmaWrite | Atomic) for node in walk((command,))):
            plain.append(command)
            continue
        if plain:
            parts.append(tuple(plain))
            plain = []
        parts.append((command,))
    if plain:
        parts.append(tuple(plain))
    return parts


def signalling_loops(module: Module) -> Iterator[Op]:
    """Yield the loops with atomics or volatile loads in them."""
    for function in module.functions.values():
        yield from _signalling(function.body)[1]


def waits(module: Module) -> bool:
    """Return whether a program may go around a loop until others change memory."""
    return any(op.name in ("scf.while", "tt.atomic_poll") for op in module.walk()) or any(
        _goes_back(region)
        for function in module.functions.values()
        for region in (
            function.body,
            *(region for op in function.body.walk() for region in op.regions),
        )
    )


def _goes_back(region: Region) -> bool:
    """Return whether a branch goes to a block that is printed no later than its own."""
    places = {block.label: place for place, block in enumerate(region.blocks)}
    return any(
        places.get(successor.label, place + 1) <= place
        for place, block in enumerate(region.blocks)
        for op in block.ops
        for successor in op.successors
    )


def _signalling(region: Region) -> tuple[bool, list[Op]]:
    """Return whether anything in a region is an atomic or volatile, and the loops that have one."""
    signals, loops = False, []
    for block in region.blocks:
        for op in block.ops:
            own = op.name.startswith("tt.atomic") or bool(op.attrs.get("isVolatile"))
            own |= op.name == "tt.call"
            for inner in op.regions:
                inside, ops = _signalling(inner)
                own |= inside
                loops += ops
            if own and op.name == "scf.for":
                loops.append(op)
            signals |= own
    return signals, loops


def spans_of(strand: Strand, part: Commands) -> list[Span]:
    """Return the bytes that a part may touch, an upper bound."""
    return [
        _span(strand, command, isinstance(part[0], Loop))
        for command in walk(part)
        if isinstance(command, DmaRead | DmaWrite | Atomic)
    ]


def watch(strand: Strand, part: Commands) -> list[Watched]:
    """Return what a part is about to read, with its current values."""
    result = []
    for span in spans_of(strand, part):
        if not span.writes or any(isinstance(dma_read, Atomic) for dma_read in part):
            small = span.high - span.low <= _MOST_SNAPSHOT
            result.append(Watched(span, _bytes(span) if small else None))
    return result


def _span(strand: Strand, command: Transfer, in_loop: bool) -> Span:
    access = access_of(command)
    pointer = strand.launch.memory.frame.pointers[access.param]
    buffer, writes = pointer.buffer, not isinstance(command, DmaRead)
    size = buffer.size_bytes
    if access.gather is None:
        low, high = access.offset.bounds()
    elif in_loop:
        return Span(buffer, 0, size, writes)
    else:
        offsets, active = lanes(strand, command, access)
        if not active.any():
            return Span(buffer, 0, 0, writes)
        low, high = int(offsets[active].min()), int(offsets[active].max())
    low, high = low + pointer.offset_bytes, high + pointer.offset_bytes + access.dtype.itemsize
    return Span(buffer, max(low, 0), min(high, size), writes)


def _bytes(span: Span) -> bytes:
    return span.buffer.bytes[span.low : span.high].tobytes()
