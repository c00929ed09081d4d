"""Shared memory that a kernel manages itself (Gluon), turned back into values.

A copy into shared memory that runs ahead (``async_copy``, TMA) becomes the load of what is read
there later; data that is stored there becomes the value that is read. So a kernel that fills its
buffers by hand becomes the commands of the kernel that a compiler would have pipelined.

In straight-line code the load stands where the copy was issued. In a rolled loop, a buffer that is
read holds what one copy of the loop wrote there a fixed number of iterations before (the loop's
*delay*), or before the loop. Then the loop's iteration ``k`` loads what iteration ``k - delay``
copied, and has ``delay + 1`` iterations in flight. That is found by value: which part of a buffer
is written and read in each iteration. Where it does not come out so, the loop is unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    Access,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Mask,
    Operand,
    Predicate,
    Separable,
    SourceLine,
    Splat,
    Tile,
    access_of,
    loop_dim,
    loop_index,
    stack,
    stack_predicates,
    uniform,
    union,
    walk,
)
from kernbench.kernel_ir.evaluation.evaluator import Evaluator, UnrollLoops
from kernbench.kernel_ir.evaluation.values import SharedBuffer
from kernbench.kernel_ir.text.ir import Op

ASYNC_DOT = "ttng.warp_group_dot"
COPIES = ("ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local")
_TOUCHING = (*COPIES, "ttg.local_store", "ttg.local_alloc", "ttg.local_load", ASYNC_DOT)
WHOLE = -1
"""The part of a buffer that is not divided into parts."""


@dataclass(frozen=True, slots=True, eq=False)
class Issued:
    """A copy that was issued: what it loads, among the commands where it was issued."""

    access: Access
    mask: Mask
    other: Operand | None
    line: SourceLine
    home: list[Command] | None
    """The commands that it stands among until it is read; None after a loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """What a rolled loop left behind, and has no name after it."""

    loop: Op


Content = Issued | Operand | Lost


@dataclass(frozen=True, slots=True)
class _Write:
    alloc: Op
    part: Separable
    content: Content
    is_new: bool = True
    """Whether the buffer holds something else now; if not, what it held has been loaded."""


@dataclass(frozen=True, slots=True)
class LoopEffects:
    """What one iteration of a loop does to shared memory."""

    writes: tuple[_Write, ...]
    outer: tuple[tuple[Op, int], ...]
    """Parts of buffers that it reads and did not write before."""
    written: frozenset[int]
    """Parameters that it writes through, in the memory of the device."""


@dataclass(slots=True)
class _Frame:
    """What the body of one rolled loop does to shared memory."""

    op: Op
    loop_id: int
    trip_count: int
    before: tuple[_Write, ...] | None
    """All writes of an iteration, in order; None while they are being found."""
    written: frozenset[int] = frozenset()
    """Parameters that the loop, or what comes before it, writes through."""
    writes: list[_Write] = field(default_factory=list)
    outer: list[tuple[Op, int]] = field(default_factory=list)
    """What is read, and not written by the loop."""
    delay: int = 0

    def rows(self, *parts: Separable) -> list[npt.NDArray[np.int64]]:
        """Return parts by iteration, along the last axis: a row for each way they go together.

        They may differ between programs, and between iterations of loops around this one.
        """
        dim = loop_dim(self.loop_id)
        dims = union(*(part.dims for part in parts), (dim,))
        counter = loop_index(self.loop_id, 0, 1, self.trip_count)
        arrays = [part.dense(dims) for part in (*parts, counter)]
        if self.trip_count == 1:
            arrays[-1] = np.zeros((1,) * len(dims), dtype=np.int64)
        *dense, _ = np.broadcast_arrays(*arrays)
        last = [
            np.moveaxis(array, dims.index(dim), -1).reshape(-1, self.trip_count) for array in dense
        ]
        together = np.unique(np.stack(last, axis=1), axis=0)
        return [together[:, index] for index in range(len(parts))]


class SharedMemory:
    """What the buffers of a program hold, on one path through a kernel."""

    def __init__(self) -> None:
        self.contents: dict[tuple[Op, int], Content] = {}
        self.frames: list[_Frame] = []
        self.inits: dict[Tile, tuple[int, Operand]] = {}
        """For each tile that a loop carries, the loop and the initial value."""

    def is_zero_at_first(self, value: Operand, loop_id: int) -> bool:
        """Return whether a value that a loop carries starts with zeros."""
        pair = self.inits.get(value) if isinstance(value, Tile) else None
        if pair is None or pair[0] != loop_id:
            return False
        return isinstance(pair[1], Splat) and not pair[1].value

    def copy(self) -> SharedMemory:
        """Return the same state, apart from this one."""
        same = SharedMemory()
        same.contents = dict(self.contents)
        same.frames = [
            replace(frame, writes=list(frame.writes), outer=list(frame.outer))
            for frame in self.frames
        ]
        same.inits = dict(self.inits)
        return same

    # -- straight-line code -------------------------------------------------------------------

    def write(
        self, run: Evaluator, buffer: SharedBuffer, content: Content, *, is_new: bool = True
    ) -> None:
        """Put something into a buffer, or note what a copy that is there was loaded as."""
        part = uniform(WHOLE) if buffer.part is None else buffer.part
        if self.frames:
            self.frames[-1].writes.append(_Write(buffer.alloc, part, content, is_new))
        else:
            self.contents[buffer.alloc, run.uniform_integer(part)] = content

    def read(self, run: Evaluator, op: Op, buffer: SharedBuffer) -> Operand:
        """Return what is in a buffer, as data; commands are emitted if it was copied there."""
        part = uniform(WHOLE) if buffer.part is None else buffer.part
        content = self._find(run, op, buffer.alloc, part, len(self.frames))
        if isinstance(content, Lost):
            raise UnrollLoops(frozenset({content.loop}))
        if not isinstance(content, Issued):
            return content
        tile = load(run, content)
        self.write(run, buffer, tile, is_new=False)
        return tile

    def _find(self, run: Evaluator, op: Op, alloc: Op, part: Separable, depth: int) -> Content:
        if not depth:
            number = run.uniform_integer(part)
            content = self.contents.get((alloc, number))
            if content is None:
                raise run.unsupported(
                    op, f"it reads shared memory of {alloc.line} that nothing was written to before"
                )
            return content
        frame = self.frames[depth - 1]
        for write in reversed(frame.writes):
            if write.alloc is alloc:
                into, read = frame.rows(write.part, part)
                same = into == read
                if same.all():
                    return write.content
                if same.any():
                    raise UnrollLoops(frozenset({frame.op}))
        if frame.before is None:
            # The iterations before may have written it: this pass only analyzes the loop.
            frame.outer += [(alloc, int(number)) for number in np.unique(frame.rows(part)[0])]
            type_ = alloc.results[0].type
            assert type_.dtype is not None
            shape = type_.shape if part.is_uniform and part.const == WHOLE else type_.shape[1:]
            return Tile(-1, shape, type_.dtype)
        later = [write for write in frame.before if write.alloc is alloc]
        if not later:
            if loop_dim(frame.loop_id) in part.trimmed().dims:
                raise UnrollLoops(frozenset({frame.op}))
            return self._find(run, op, alloc, part.trimmed(), depth - 1)
        return self._from_before(run, op, frame, later, part, depth)

    def _from_before(
        self,
        run: Evaluator,
        op: Op,
        frame: _Frame,
        writes: list[_Write],
        part: Separable,
        depth: int,
    ) -> Content:
        """Return what iterations before this one copied, and at first what came before the loop."""
        unroll = UnrollLoops(frozenset({frame.op}))
        write, alloc = writes[-1], writes[-1].alloc
        if len(writes) > 1 or not isinstance(write.content, Issued):
            raise unroll
        delays = {_delay(*rows) for rows in zip(*frame.rows(write.part, part), strict=True)}
        delay = delays.pop()
        if delays or delay is None or write.content.access.param in frame.written:
            raise unroll
        dim = loop_dim(frame.loop_id)
        rows: list[Issued] = []
        for iteration in range(frame.trip_count):
            if iteration >= delay:
                rows.append(_at(write.content, dim, iteration - delay))
                continue
            first = self._find(run, op, alloc, part.at(dim, iteration), depth - 1)
            if isinstance(first, Tile) and first.slot < 0:
                # A loop around this one is still being analyzed.
                return first
            if not isinstance(first, Issued) or not _is_like(first, write.content):
                raise unroll
            rows.append(first)
        frame.delay = max(frame.delay, delay)
        return _stacked(rows, frame.loop_id)

    @staticmethod
    def finished(commands: list[Command]) -> tuple[Command, ...]:
        """Return commands without the copies that nothing reads."""
        return tuple(command for command in commands if not isinstance(command, Issued))

    # -- rolled loops -------------------------------------------------------------------------

    def effects(self, commands: list[Command]) -> LoopEffects:
        """End finding out what the body of a rolled loop does; ``commands`` are what it emitted.

        What it reads and does not write is loaded before the loop.
        """
        frame = self.frames.pop()
        writes = tuple(write for write in frame.writes if write.is_new)
        return LoopEffects(writes, tuple(dict.fromkeys(frame.outer)), written(commands))

    def enter(
        self, run: Evaluator, op: Op, loop_id: int, trip_count: int, loop_effects: LoopEffects
    ) -> None:
        """Begin the body of a rolled loop, of which is known what it does."""
        own = {write.alloc for write in loop_effects.writes}
        for alloc, number in loop_effects.outer:
            if alloc not in own:
                part = None if number == WHOLE else uniform(number)
                self.read(run, op, SharedBuffer(alloc, part))
        everywhere = loop_effects.written | written(run.commands)
        self.frames.append(_Frame(op, loop_id, trip_count, loop_effects.writes, everywhere))

    def begin(self, op: Op, loop_id: int, trip_count: int) -> None:
        """Begin finding out what the body of a rolled loop does."""
        self.frames.append(_Frame(op, loop_id, trip_count, None))

    def leave(self, run: Evaluator) -> int:
        """End the body of a rolled loop; return how many of its iterations are in flight."""
        frame = self.frames.pop()
        dim = loop_dim(frame.loop_id)
        writes = [write for write in frame.writes if write.is_new]
        most = max(map(_num_parts, writes), default=0)
        for iteration in range(max(frame.trip_count - most, 0), frame.trip_count):
            for write in writes:
                left: Content = Lost(frame.op)
                if isinstance(write.content, Issued):
                    left = _at(write.content, dim, iteration)
                where = write.part.at(dim, iteration)
                self.write(run, SharedBuffer(write.alloc, where), left)
        # A product that is not waited for has its operands for one iteration more.
        parts = [_num_parts(write) for write in writes if isinstance(write.content, Issued)]
        return min(frame.delay + 1 + _runs_on(frame.op), max(parts, default=1))


def _num_parts(write: _Write) -> int:
    """Return how many parts the buffer has that is written to."""
    is_whole = write.part.is_uniform and write.part.const == WHOLE
    return 1 if is_whole else write.alloc.results[0].type.shape[0]


def _runs_on(loop: Op) -> bool:
    """Return whether a product still runs when an iteration of the loop ends."""
    running = False
    for op in loop.regions[0].walk():
        if op.name == ASYNC_DOT:
            running = bool(op.attrs.get("isAsync"))
        elif op.name == "ttng.warp_group_dot_wait" and not op.attrs.get("pendings"):
            running = False
    return running


def touches(op: Op) -> bool:
    """Return whether a loop reads or writes shared memory."""
    return any(node.name in _TOUCHING for node in op.regions[0].walk())


def loop_of(dim: int) -> int:
    """Return the loop whose dim this is: :func:`loop_dim` in reverse."""
    return dim - loop_dim(0)


def load(run: Evaluator, issued: Issued) -> Tile:
    """Emit the load that a copy is, where it was issued if that is among these commands."""
    tile = run.new_tile(issued.access.shape, issued.access.dtype)
    command = DmaRead(tile, issued.access, issued.mask, issued.other, issued.line)
    commands: list[Any] = run.commands
    if issued.home is commands and issued in commands:
        commands[commands.index(issued)] = command
    else:
        commands.append(command)
    return tile


def written(commands: list[Command]) -> frozenset[int]:
    """Return the parameters that commands write through."""
    return frozenset(
        access_of(node).param
        for node in walk(tuple(commands))
        if isinstance(node, DmaWrite | Atomic)
    )


def _delay(written: npt.NDArray[np.int64], read: npt.NDArray[np.int64]) -> int | None:
    """Return how many iterations before each read its part was written; None if that varies."""
    latest: dict[int, int] = {}
    numbers: set[int] = set()
    first: list[int] = []
    for iteration, (into, out) in enumerate(zip(written.tolist(), read.tolist(), strict=True)):
        # Written in the same iteration: that would have been seen, if it came first.
        if out in latest:
            numbers.add(iteration - latest[out])
        else:
            first.append(iteration)
        latest[into] = iteration
    if not numbers:
        return len(written)
    delay = numbers.pop()
    return delay if not numbers and first == list(range(delay)) else None


def _at(issued: Issued, dim: int, iteration: int) -> Issued:
    access = replace(issued.access, offset=issued.access.offset.at(dim, iteration))
    mask = issued.mask
    if isinstance(mask, Predicate):
        mask = mask.at(dim, iteration)
    return replace(issued, access=access, mask=mask, home=None)


def _is_like(a: Issued, b: Issued) -> bool:
    """Return whether two copies differ at most in addresses and masks that are known."""
    return (
        (a.access.param, a.access.dtype, a.access.shape)
        == (b.access.param, b.access.dtype, b.access.shape)
        and a.access.gather is b.access.gather is None
        and isinstance(a.mask, Predicate)
        and isinstance(b.mask, Predicate)
        and _same_other(a.other, b.other)
    )


def _same_other(a: Any, b: Any) -> bool:
    if isinstance(a, Splat) and isinstance(b, Splat):
        return a == b or (a.value != a.value and b.value != b.value)
    return a is b


def _stacked(rows: list[Issued], loop_id: int) -> Issued:
    """Return the copy that is ``rows[k]`` in iteration ``k``."""
    offset = stack([row.access.offset for row in rows], loop_id)
    masks = [row.mask for row in rows if isinstance(row.mask, Predicate)]
    first = rows[0]
    return replace(
        first,
        access=replace(first.access, offset=offset),
        mask=stack_predicates(masks, loop_id) if len(masks) == len(rows) else first.mask,
        line=rows[-1].line,
        home=None,
    )
