"""Control flow of a strand: a stack of frames, one for each region that it is inside of.

An operation with regions pushes a frame (:data:`CONTROL_FLOW`); the end of a block moves within
its frame or pops it (:func:`end_block`, :func:`end_region`). Nothing is kept on Python's stack: a
strand may stop before any operation, and its parts resume from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernbench.commands import Math, MathClass, Predicate, Separable, Splat, Tile, uniform
from kernbench.dtypes import Array, bool_
from kernbench.errors import DeadlockError, UnsupportedOpError
from kernbench.interleaved.undefined import check_decision
from kernbench.interleaved.values import of_programs, same
from kernbench.kernel_ir import (
    HANDLERS,
    Block,
    Held,
    Op,
    Region,
    UnrollLoops,
    Value,
    choose_both_ways,
    iterations_of,
    wrap,
)

if TYPE_CHECKING:
    from kernbench.interleaved.strand import Strand


TERMINATORS = frozenset({"scf.yield", "scf.condition", "tt.return"})
"""Operations that end a block; so does whatever has successors."""
_MOST_ITERATIONS = 1 << 20
"""A loop that runs longer is taken for endless."""


@dataclass(slots=True)
class RegionFrame:
    """Where a strand is inside of one region."""

    op: Op | None
    """The operation that the region belongs to, None for the kernel's own body."""
    region: Region
    block: Block
    position: int = 0
    iteration: int = 0
    trip_count: int = 0
    low: Separable = field(default_factory=lambda: Separable(()))
    step: Separable = field(default_factory=lambda: Separable(()))
    outer: dict[Value, Held] | None = None
    """The caller's values, in a call."""
    carried: tuple[Held, ...] | None = None
    """The values that the current iteration of the loop began with, None before the second."""
    header: Block | None = None
    """The block where the current iteration began, in a loop of blocks."""
    is_polling: bool = False
    """Whether the operation at the position is a poll that has not succeeded yet."""
    records: bool = False
    """Whether this frame has an open loop in the recording."""

    @property
    def is_function(self) -> bool:
        return self.op is None or self.op.name == "tt.call"

    def of_programs(self, positions: Array) -> RegionFrame:
        outer = None
        if self.outer is not None:
            outer = {v: of_programs(held, positions) for v, held in self.outer.items()}
        return replace(
            self,
            low=of_programs(self.low, positions),
            step=of_programs(self.step, positions),
            carried=None if self.carried is None else of_programs(self.carried, positions),
            outer=outer,
        )


def enter_region(strand: Strand, frame: RegionFrame, arguments: Sequence[Held]) -> None:
    """Start a region from its first block, which takes these arguments."""
    _go_to_block(strand, frame, frame.region.entry, arguments)
    strand.frames.append(frame)


def _go_to_block(
    strand: Strand, frame: RegionFrame, block: Block, arguments: Sequence[Held]
) -> None:
    if len(arguments) != len(block.args):
        raise UnsupportedOpError(
            f"a block of kernel {strand.module.kernel.name} must have {len(arguments)} "
            f"arguments, but has {len(block.args)}"
        )
    frame.block, frame.position = block, 0
    for arg, held in zip(block.args, arguments, strict=True):
        strand.set(arg, held)


def _enter_for(strand: Strand, frame: RegionFrame, op: Op) -> None:
    if op not in strand.launch.stepped and _run_whole(strand, frame, op):
        return
    iterations = iterations_of(strand, op)
    inits = [strand.get(value) for value in op.operands[3:]]
    if iterations.count == 0:
        for value, held in zip(op.results, inits, strict=True):
            strand.set(value, held)
        frame.position += 1
        return
    region = op.regions[0]
    low, step, count = iterations.low, iterations.step, iterations.count
    inner = RegionFrame(op, region, region.entry, trip_count=count, low=low, step=step)
    inner.records = True
    strand.recording.enter_loop(op.line)
    enter_region(strand, inner, (_loop_index(strand, inner), *inits))


def _run_whole(strand: Strand, frame: RegionFrame, op: Op) -> bool:
    """Run a loop that decides nothing by data as one command; return whether it was one."""
    open_loops = dict(strand.open_loops)
    strand.trying += 1
    try:
        HANDLERS[op.name](strand, op)
    except (UnsupportedOpError, UnrollLoops):
        # Step by step it may work, or raise where it happens.
        strand.launch.stepped.add(op)
        strand.commands = []
        return False
    finally:
        strand.open_loops = open_loops
        strand.trying -= 1
    strand.finish(frame, op)
    return True


def _loop_index(strand: Strand, frame: RegionFrame) -> Separable:
    assert frame.op is not None
    bits = frame.op.operands[0].type.bits
    return wrap(frame.low + frame.step * uniform(frame.iteration), bits)


def _enter_while(strand: Strand, frame: RegionFrame, op: Op) -> None:
    before = op.regions[0]
    inits = tuple(strand.get(value) for value in op.operands)
    strand.recording.enter_loop(op.line)
    enter_region(strand, RegionFrame(op, before, before.entry, carried=inits, records=True), inits)


def _enter_if(strand: Strand, frame: RegionFrame, op: Op) -> None:
    condition = strand.get(op.operands[0])
    if strand.undefined:
        check_decision(strand, op, op.operands[:1])
    if isinstance(condition, Predicate) and not condition.is_uniform:
        strand.trying += 1
        try:
            chosen = choose_both_ways(strand, op, condition)
        finally:
            strand.trying -= 1
        if chosen is not None:
            for value, held in zip(op.results, chosen, strict=True):
                strand.set(value, held)
            frame.position += 1
            return
    taken = 0 if strand.decide(op, op.operands[0]) else 1
    if taken >= len(op.regions) or not op.regions[taken].blocks:
        frame.position += 1
        return
    region = op.regions[taken]
    enter_region(strand, RegionFrame(op, region, region.entry), ())


def _enter_call(strand: Strand, frame: RegionFrame, op: Op) -> None:
    depth = sum(frame.outer is not None for frame in strand.frames)
    function = strand.callee(op, depth)
    arguments = [strand.get(value) for value in op.operands]
    inner = RegionFrame(op, function.body, function.body.entry, outer=dict(strand.values))
    enter_region(strand, inner, arguments)


CONTROL_FLOW: dict[str, Callable[[Strand, RegionFrame, Op], None]] = {
    "scf.for": _enter_for,
    "scf.while": _enter_while,
    "scf.if": _enter_if,
    "tt.call": _enter_call,
}
"""How a strand starts each operation whose regions it walks, by the operation's name."""


def end_block(strand: Strand, frame: RegionFrame, op: Op) -> bool:
    """End a block; return whether the strand yields."""
    if op.successors:
        return _take_branch(strand, frame, op)
    if op.name == "scf.condition":
        _decide_while(strand, frame, op)
        return False
    held = tuple(strand.get(value) for value in op.operands)
    if op.name == "tt.return":
        _return_from_function(strand, held)
        return False
    return end_region(strand, frame, held)


def end_region(strand: Strand, frame: RegionFrame, held: tuple[Held, ...]) -> bool:
    """Pass on the values that a region ends with; return whether the strand yields."""
    op = frame.op
    if op is not None and op.name == "scf.for":
        frame.iteration += 1
        if frame.iteration == frame.trip_count:
            strand.recording.next_iteration()
            _leave_region(strand, held)
            return False
        _go_to_block(strand, frame, frame.block, (_loop_index(strand, frame), *held))
        return _begin_turn(strand, frame, op, held)
    if op is not None and op.name == "scf.while":
        frame.region = op.regions[0]
        _go_to_block(strand, frame, frame.region.entry, held)
        return _begin_turn(strand, frame, op, held)
    if op is None or op.name == "tt.call":
        _return_from_function(strand, held)
    else:
        _leave_region(strand, held)
    return False


def _take_branch(strand: Strand, frame: RegionFrame, op: Op) -> bool:
    successor = op.successors[0]
    if len(op.successors) > 1 and not strand.decide(op, op.operands[0]):
        successor = op.successors[1]
    labels = [block.label for block in frame.region.blocks]
    if successor.label not in labels:
        raise strand.unsupported(op, f"there is no block {successor.label}")
    target = frame.region.blocks[labels.index(successor.label)]
    closes_loop = strand.launch.back_branches.closes_loop(frame.region, frame.block, target)
    held = tuple(strand.get(value) for value in successor.operands)
    _go_to_block(strand, frame, target, held)
    if not closes_loop:
        return False
    if frame.header is not target:
        # What another loop of these blocks has carried is not comparable.
        frame.header, frame.carried = target, None
    if not frame.records:
        frame.records = True
        strand.recording.enter_loop(op.line)
    return _begin_turn(strand, frame, op, held)


def _decide_while(strand: Strand, frame: RegionFrame, op: Op) -> None:
    going = strand.decide(op, op.operands[0])
    held = [strand.get(value) for value in op.operands[1:]]
    if not going:
        assert frame.op is not None
        _record_decision(strand, frame.op)
        _leave_region(strand, held)
        return
    assert frame.op is not None
    frame.region = frame.op.regions[1]
    _go_to_block(strand, frame, frame.region.entry, held)


def _return_from_function(strand: Strand, held: tuple[Held, ...]) -> None:
    while not strand.frames[-1].is_function:
        if strand.frames.pop().records:
            strand.recording.leave_loop()
    outer = strand.frames[-1].outer
    if outer is not None:
        strand.values = outer
    _leave_region(strand, held)


def _leave_region(strand: Strand, results: Sequence[Held]) -> None:
    """Leave the innermost region, whose operation has these results."""
    frame = strand.frames.pop()
    if frame.records:
        strand.recording.leave_loop()
    if frame.op is None:
        strand.frames.clear()
        return
    for value, held in zip(frame.op.results, results, strict=True):
        strand.set(value, held)
    strand.frames[-1].position += 1


def _begin_turn(strand: Strand, frame: RegionFrame, op: Op, held: tuple[Held, ...]) -> bool:
    """Begin another iteration of a loop; return whether the strand yields."""
    if op.name != "scf.for":
        _record_decision(strand, op)
        frame.iteration += 1
        if frame.iteration > _MOST_ITERATIONS:
            raise DeadlockError(
                f"{strand.place(op)} has run {_MOST_ITERATIONS} times; it may never end"
            )
    strand.recording.next_iteration()
    before, frame.carried = frame.carried, held
    memory = strand.launch.memory
    if not strand.polled and frame.iteration % 256:
        return False
    in_vain = (
        op.name != "scf.for"
        and memory.version == strand.turn_began_at
        and before is not None
        and same(before, held, strand.bytes_of)
    )
    strand.stuck_at = memory.version if in_vain else None
    strand.is_waiting = in_vain
    if not in_vain:
        strand.watched = []
    strand.loop_line = op.line
    strand.polled, strand.turn_began_at = False, None
    return True


def _record_decision(strand: Strand, op: Op) -> None:
    """Record the cost of a decision by data: one operation of the math engine on one element."""
    flag = Splat(True, (), bool_)
    strand.recording.add(
        strand.program_ids,
        (Math(Tile(0, (), bool_), "arith.ori", (flag, flag), MathClass.SIMPLE, op.line),),
        False,
    )
