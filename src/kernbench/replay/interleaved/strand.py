"""A strand: programs of a launch that have agreed on every decision so far, run on data.

It is the evaluator of ``kernel_ir`` with three differences. Commands are executed as soon as an
operation has emitted them. A scalar that was data (a loaded trip count, what an atomic found) is
from then on a number per program, as if phase 1 had known it. And control flow is a stack of its
own and not Python's, so that a strand can stop anywhere, be split, and go on later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    Command,
    Math,
    MathClass,
    Predicate,
    Separable,
    Splat,
    Tile,
    uniform,
)
from kernbench.dtypes import DType, bool_
from kernbench.errors import DeadlockError, UnsupportedOpError
from kernbench.kernel_ir import (
    ABSOLUTE,
    HANDLERS,
    Block,
    Evaluator,
    Held,
    Op,
    Pointer,
    Region,
    SplitPrograms,
    UnrollLoops,
    Value,
    choose_both_ways,
    emit_load,
    iterations_of,
    wrap,
)
from kernbench.replay.interleaved.execution import execute, place
from kernbench.replay.interleaved.pacing import Decisions, Watched, parts_of, watch
from kernbench.replay.interleaved.recording import Recording
from kernbench.replay.interleaved.values import Rows, as_known, of_programs, same, slots_of

if TYPE_CHECKING:
    from kernbench.replay.interleaved.launch import InterleavedLaunch

Array = npt.NDArray[Any]

_TERMINATORS = frozenset({"scf.yield", "scf.condition", "tt.return"})
_KEPT_BYTES = 32 << 20
"""New data after which a strand looks for what it does not need any more."""
_MOST_ITERATIONS = 1 << 20
"""A loop that runs longer does not end, as far as anybody wants to wait."""


@dataclass(slots=True)
class Frame:
    """Where a strand is inside of one region."""

    op: Op | None
    """What the region belongs to, None for the kernel's own body."""
    region: Region
    block: Block
    position: int = 0
    iteration: int = 0
    trip_count: int = 0
    low: Separable = field(default_factory=lambda: Separable(()))
    step: Separable = field(default_factory=lambda: Separable(()))
    outer: dict[Value, Held] | None = None
    """Of a call: the caller's values."""
    carried: tuple[Held, ...] = ()
    """What the last turn of the loop began with."""
    is_polling: bool = False
    """Whether the operation at the position has been tried in vain."""
    records: bool = False
    """Whether the recording is inside of a loop for this frame."""

    @property
    def is_function(self) -> bool:
        return self.op is None or self.op.name == "tt.call"

    def of_programs(self, positions: Array) -> Frame:
        outer = None
        if self.outer is not None:
            outer = {v: of_programs(held, positions) for v, held in self.outer.items()}
        return replace(
            self,
            low=of_programs(self.low, positions),
            step=of_programs(self.step, positions),
            carried=of_programs(self.carried, positions),
            outer=outer,
        )


class Strand(Evaluator):
    """One strand of a launch. It ends when its programs return."""

    def __init__(self, launch: InterleavedLaunch, program_ids: Array) -> None:
        super().__init__(
            launch.module,
            launch.grid,
            program_ids,
            frozenset(),
            launch.num_stages,
            launch.roundings,
            num_slots=0,
            num_loops=0,
        )
        self.launch = launch
        self.frames: list[Frame] = []
        self.data: dict[int, Rows] = {}
        self.recording = Decisions() if launch.is_paced else Recording(self.module.kernel.line)
        self.polled = False
        """Whether memory was read since the strand last gave way."""
        self.stuck_at: int | None = None
        """The version of memory at which another turn of the loop would change nothing."""
        self.loop_line = self.module.kernel.line
        """The line of the loop that the strand last gave way in."""
        self.parts: list[tuple[Command, ...]] = []
        """In a paced launch: what the operation at hand does, which whoever paces it performs."""
        self.watched: list[Watched] = []
        """In a paced launch: what the present turn of a loop has read."""
        self.is_waiting = False
        """In a paced launch: whether it gave way because only a change of memory gets it on."""
        self._settling: tuple[Frame, Op]
        self._polling: tuple[Tile, tuple[Command, ...]]
        self._turn_began_at: int | None = None
        """The version of memory that the present turn of a loop began with."""
        self.may_give_up = False
        """Whether what it waits for has a timeout."""
        self.timeout_ns = 0
        """How long it waits then."""
        self.gives_up = False
        """Whether that has run out."""
        self._trying = 0
        self._free: list[int] = []
        self._prune_at = 256
        self._new_bytes = 0
        self._most_bytes = _KEPT_BYTES

    def begin(self) -> None:
        """Enter the kernel."""
        kernel = self.module.kernel
        self._enter(
            Frame(None, kernel.body, kernel.body.entry), self._arguments(kernel, self.launch.ints)
        )

    def split(self, labels: Array) -> list[Strand]:
        """Return the parts of the strand, the one with the lowest program first."""
        values, where = np.unique(labels.reshape(-1), return_inverse=True)
        parts = [np.flatnonzero(where == index) for index in range(len(values))]
        parts.sort(key=lambda part: int(part[0]))
        self._prune()
        return [self._part(positions) for positions in parts]

    def _part(self, positions: Array) -> Strand:
        other = Strand(self.launch, self.program_ids[positions])
        other._values = {v: of_programs(held, positions) for v, held in self._values.items()}
        other.data = {slot: rows.take(positions) for slot, rows in self.data.items()}
        other.frames = [frame.of_programs(positions) for frame in self.frames]
        other.recording = self.recording.copy()
        other.num_slots, other.num_loops = self.num_slots, self.num_loops
        other._free = list(self._free)
        other.polled, other._turn_began_at = self.polled, self._turn_began_at
        other.watched = list(self.watched)
        return other

    # -- values -------------------------------------------------------------------------------

    def new_tile(self, shape: tuple[int, ...], dtype: DType) -> Tile:
        if self._free:
            return Tile(self._free.pop(), shape, dtype)
        return super().new_tile(shape, dtype)

    def set(self, value: Value, held: Held) -> None:
        if isinstance(held, Tile) and value.type.is_pointer:
            held = Pointer(ABSOLUTE, Separable(held.shape), held)
        if isinstance(held, Pointer) and held.param == ABSOLUTE and not held.shape:
            held = self._resolved(held)
        super().set(value, held)

    def address(self, op: Op, pointer: Pointer) -> Separable | Tile:
        if pointer.param != ABSOLUTE:
            base = uniform(self.launch.memory.address(pointer.param))
            pointer = Pointer(ABSOLUTE, pointer.offset + base, pointer.gather)
        return super().address(op, pointer)

    def check_reachable(self, op: Op, access: Access) -> None:
        if access.param == ABSOLUTE and self._trying:
            raise self.needs_data(op, "its address was made from an integer")

    def split_partial(self, mask: Predicate) -> None:
        """Strands are short: it does not pay to split one for the sake of a mask."""

    def _resolved(self, pointer: Pointer) -> Pointer:
        """Return a scalar pointer relative to the buffer that it points into.

        Raises:
            SplitPrograms: That is another one for other programs.
        """
        if pointer.gather is not None or any(dim != PROGRAM for dim in pointer.offset.dims):
            return pointer
        memory = self.launch.memory
        found = memory.find_all(pointer.offset.dense((PROGRAM,)))
        if (found != found[0]).any():
            raise SplitPrograms(found)
        index = int(found[0])
        if index < 0:
            # Nothing is wrong as long as nobody goes there.
            return pointer
        base = uniform(memory.buffer(index).address)
        return Pointer(index, pointer.offset - base)

    def array(self, tile: Tile) -> Array:
        """Return the data of a tile, ``[programs, *tile]``."""
        return self.data[tile.slot].array

    def keep_shadow(self, slot: int, shadow: Array | None) -> None:
        """Take what a watch knows about the data of a slot; None is nothing."""
        if shadow is None:
            self.data.pop(~slot, None)
        else:
            self.data[~slot] = Rows(shadow)

    def keep(self, slot: int, array: Array) -> None:
        """Take an array as the data of a slot."""
        self.data[slot] = Rows(array)
        self._new_bytes += array.nbytes

    def _prune(self) -> None:
        """Forget values that nobody reads any more, and the data of tiles that no value names."""
        for frame in self.frames:
            for value, last in self.launch.liveness.last_uses(frame.block).items():
                if last < frame.position:
                    self._values.pop(value, None)
        used: set[int] = set()
        environments = [self._values, *(f.outer for f in self.frames if f.outer is not None)]
        for environment in environments:
            for held in environment.values():
                used.update(slots_of(held))
        for frame in self.frames:
            for held in frame.carried:
                used.update(slots_of(held))
        # A watch's knowledge about a slot is at ~slot.
        self.data = {slot: rows for slot, rows in self.data.items() if max(slot, ~slot) in used}
        self._free = [slot for slot in range(self.num_slots) if slot not in used]
        self._prune_at = 2 * len(used) + 256
        self._new_bytes = 0
        kept_bytes = sum(rows.size_bytes for rows in self.data.values())
        self._most_bytes = max(_KEPT_BYTES, kept_bytes)

    def forget(self) -> None:
        """Drop all values and data: the programs have returned, and only the record matters."""
        self._values = {}
        self.data = {}

    # -- one operation after the other --------------------------------------------------------

    def advance(self) -> bool:
        """Run until all programs have returned (False) or it is somebody else's turn (True).

        In a paced launch it is also when an operation has :attr:`parts`.

        Raises:
            SplitPrograms: The programs disagree; the parts go on with the same operation.
        """
        if self._turn_began_at is None:
            self._turn_began_at = self.launch.memory.version
        self.is_waiting = False
        while self.frames and not self.parts:
            frame = self.frames[-1]
            ops = frame.block.ops
            if frame.position >= len(ops):
                # `scf.if` and `scf.for` without results print no terminator.
                if self._end_region(frame, ()):
                    return True
                continue
            op = ops[frame.position]
            if op.name in _TERMINATORS or op.successors:
                if self._terminate(frame, op):
                    return True
                continue
            self.commands = []
            enter = _ENTER.get(op.name)
            if enter is not None:
                enter(self, frame, op)
            elif op.name == "tt.atomic_poll":
                if self._poll(frame, op):
                    return True
            else:
                self._run_plain(frame, op)
        return bool(self.parts)

    def _run_plain(self, frame: Frame, op: Op) -> None:
        handler = HANDLERS.get(op.name)
        if handler is None:
            self.run_ops((op,))
            return
        handler(self, op)
        self._finish(frame, op)

    def _finish(self, frame: Frame, op: Op) -> None:
        """Execute what an operation has emitted, and take its scalars as known."""
        watch = self.launch.watch
        if watch is not None and self.overflows:
            watch.refuse(self.overflows.values())
        commands = place(self, op, tuple(self.commands))
        self.commands = []
        if commands and self.launch.is_paced:
            self._hand_out(commands, frame, op)
            return
        if commands:
            execute(self, commands)
            self.recording.add(self.program_ids, commands, self._take_results(op))
        self._pass(frame)

    def _hand_out(self, commands: tuple[Command, ...], frame: Frame, op: Op) -> None:
        """Leave the commands of an operation to whoever paces the launch."""
        self.parts = parts_of(commands)
        self._settling = (frame, op)

    def perform(self, part: tuple[Command, ...]) -> None:
        """Execute one of :attr:`parts` now.

        Raises:
            OutOfBoundsError: An access leaves its tensor.
        """
        self.watched += watch(self, part)
        execute(self, part)

    def settle(self) -> bool:
        """Go on after the operation whose parts have all been performed.

        Returns whether it decides what comes next, so that nothing may start before it has ended.

        Raises:
            SplitPrograms: The programs see different things; the parts look again.
        """
        frame, op = self._settling
        self.parts = []
        if op.name == "tt.atomic_poll":
            self.is_waiting = self._look(frame, op)
            return True
        decisive = self._take_results(op)
        self._pass(frame)
        return decisive

    def _take_results(self, op: Op) -> bool:
        """Take the scalars among the results as known; return whether there are any."""
        decisive = False
        for result in op.results:
            decisive |= self._take_as_known(result)
        return decisive

    def _pass(self, frame: Frame) -> None:
        frame.position += 1
        if len(self.data) > self._prune_at or self._new_bytes > self._most_bytes:
            self._prune()

    def _take_as_known(self, result: Value) -> bool:
        held = self._values.get(result)
        if not isinstance(held, Tile | Pointer) or held.shape:
            return False
        if isinstance(held, Pointer):
            if held.param != ABSOLUTE or held.gather is None:
                return False
            known = as_known(self.array(held.gather))
            assert isinstance(known, Separable)
            self.set(result, Pointer(ABSOLUTE, held.offset + known))
            return True
        if held.slot not in self.data or held.dtype.is_floating_point:
            return False
        super().set(result, as_known(self.array(held)))
        return True

    # -- regions ------------------------------------------------------------------------------

    def _enter(self, frame: Frame, arguments: Sequence[Held]) -> None:
        self._go_to(frame, frame.region.entry, arguments)
        self.frames.append(frame)

    def _go_to(self, frame: Frame, block: Block, arguments: Sequence[Held]) -> None:
        if len(arguments) != len(block.args):
            raise UnsupportedOpError(
                f"a block of kernel {self.module.kernel.name} must have {len(arguments)} "
                f"arguments, but has {len(block.args)}"
            )
        frame.block, frame.position = block, 0
        for arg, held in zip(block.args, arguments, strict=True):
            self.set(arg, held)

    def _leave(self, results: Sequence[Held]) -> None:
        """Leave the innermost region for good: its operation has these results."""
        frame = self.frames.pop()
        if frame.records:
            self.recording.leave_loop()
        if frame.op is None:
            self.frames.clear()
            return
        for value, held in zip(frame.op.results, results, strict=True):
            self.set(value, held)
        self.frames[-1].position += 1

    def _terminate(self, frame: Frame, op: Op) -> bool:
        """End a block; return whether it is somebody else's turn."""
        if op.successors:
            return self._branch(frame, op)
        if op.name == "scf.condition":
            self._decide_while(frame, op)
            return False
        held = tuple(self.get(value) for value in op.operands)
        if op.name == "tt.return":
            self._return(held)
            return False
        return self._end_region(frame, held)

    def _end_region(self, frame: Frame, held: tuple[Held, ...]) -> bool:
        op = frame.op
        if op is not None and op.name == "scf.for":
            frame.iteration += 1
            if frame.iteration == frame.trip_count:
                self.recording.next_iteration()
                self._leave(held)
                return False
            self._go_to(frame, frame.block, (self._index(frame), *held))
            return self._turn(frame, op, held)
        if op is not None and op.name == "scf.while":
            frame.region = op.regions[0]
            self._go_to(frame, frame.region.entry, held)
            return self._turn(frame, op, held)
        if op is None or op.name == "tt.call":
            self._return(held)
        else:
            self._leave(held)
        return False

    def _return(self, held: tuple[Held, ...]) -> None:
        while not self.frames[-1].is_function:
            self._drop()
        outer = self.frames[-1].outer
        if outer is not None:
            self._values = outer
        self._leave(held)

    def _drop(self) -> None:
        if self.frames.pop().records:
            self.recording.leave_loop()

    def _index(self, frame: Frame) -> Separable:
        assert frame.op is not None
        bits = frame.op.operands[0].type.bits
        return wrap(frame.low + frame.step * uniform(frame.iteration), bits)

    def _branch(self, frame: Frame, op: Op) -> bool:
        successor = op.successors[0]
        if len(op.successors) > 1 and not self.decide(op, op.operands[0]):
            successor = op.successors[1]
        labels = [block.label for block in frame.region.blocks]
        if successor.label not in labels:
            raise self.unsupported(op, f"there is no block {successor.label}")
        target = frame.region.blocks[labels.index(successor.label)]
        is_back = labels.index(successor.label) <= labels.index(frame.block.label)
        held = tuple(self.get(value) for value in successor.operands)
        self._go_to(frame, target, held)
        if not is_back:
            return False
        if not frame.records:
            frame.records = True
            self.recording.enter_loop(op.line)
        return self._turn(frame, op, held)

    def _poll(self, frame: Frame, op: Op) -> bool:
        """Read what a poll waits for; return whether it is somebody else's turn.

        Raises:
            SplitPrograms: Some programs have to wait and some have not.
        """
        if not frame.is_polling:
            frame.is_polling = True
            self.recording.enter_loop(op.line)
        emit_load(self, op, len(op.operands))
        loaded = self.commands[-1]
        assert isinstance(loaded, Atomic)
        assert loaded.dst is not None
        expected = self.operand(op, 1)
        flags = self.emit_math(
            op, "arith.cmpi", [loaded.dst, expected], MathClass.SIMPLE, bool_,
            attrs={"predicate": "eq"},
        )  # fmt: skip
        commands = place(self, op, tuple(self.commands))
        self.commands = []
        self._polling = (flags, commands)
        if self.launch.is_paced:
            self._hand_out(commands, frame, op)
            return True
        execute(self, commands)
        return self._look(frame, op)

    def _look(self, frame: Frame, op: Op) -> bool:
        """Go on behind a poll if memory holds what it waits for; return whether it has to wait.

        Raises:
            SplitPrograms: Some programs have to and some have not.
        """
        flags, commands = self._polling
        seen = self.array(flags)
        ready: Array = np.logical_and.reduce(seen.reshape(len(seen), -1), axis=1)
        self.may_give_up = "timeout" in op.attrs.get("words", ())
        if self.may_give_up:
            self.timeout_ns = self.uniform_integer(self.integer(op, 2))
        if not self.gives_up and (ready != ready[0]).any():
            raise SplitPrograms(ready)
        self.recording.add(self.program_ids, commands, False)
        self.recording.next_iteration()
        if not ready[0] and not self.gives_up:
            self.stuck_at = self.launch.memory.version
            self.loop_line = op.line
            self.polled, self._turn_began_at = False, None
            return True
        self.recording.leave_loop()
        frame.is_polling = self.gives_up = self.may_give_up = False
        self.stuck_at = None
        result = op.results[0]
        self.set(result, flags if flags.shape else as_known(seen))
        frame.position += 1
        return False

    # -- loops --------------------------------------------------------------------------------

    def _turn(self, frame: Frame, op: Op, held: tuple[Held, ...]) -> bool:
        """Begin another turn of a loop; return whether it is somebody else's turn to run."""
        if op.name != "scf.for":
            self._record_decision(op)
            frame.iteration += 1
            if frame.iteration > _MOST_ITERATIONS:
                raise DeadlockError(
                    f"{self.place(op)} has run {_MOST_ITERATIONS} times: does it end?"
                )
        self.recording.next_iteration()
        before, frame.carried = frame.carried, held
        memory = self.launch.memory
        if not self.polled and frame.iteration % 256:
            return False
        in_vain = (
            op.name != "scf.for"
            and memory.version == self._turn_began_at
            and same(before, held, self.array)
        )
        self.stuck_at = memory.version if in_vain else None
        self.is_waiting = in_vain
        if not in_vain:
            self.watched = []
        self.loop_line = op.line
        self.polled, self._turn_began_at = False, None
        return True

    def _record_decision(self, op: Op) -> None:
        """A decision by data costs one operation of the math engine, on one element."""
        flag = Splat(True, (), bool_)
        self.recording.add(
            self.program_ids,
            (Math(Tile(0, (), bool_), "arith.ori", (flag, flag), MathClass.SIMPLE, op.line),),
            False,
        )

    def _for(self, frame: Frame, op: Op) -> None:
        if op not in self.launch.stepped and self._run_whole(frame, op):
            return
        iterations = iterations_of(self, op)
        inits = [self.get(value) for value in op.operands[3:]]
        if iterations.count == 0:
            for value, held in zip(op.results, inits, strict=True):
                self.set(value, held)
            frame.position += 1
            return
        region = op.regions[0]
        low, step, count = iterations.low, iterations.step, iterations.count
        inner = Frame(op, region, region.entry, trip_count=count, low=low, step=step)
        inner.records = True
        self.recording.enter_loop(op.line)
        self._enter(inner, (self._index(inner), *inits))

    def _run_whole(self, frame: Frame, op: Op) -> bool:
        """Run a loop that decides nothing by data as one command; return whether it is one."""
        open_loops = dict(self.open_loops)
        self._trying += 1
        try:
            HANDLERS[op.name](self, op)
        except (UnsupportedOpError, UnrollLoops):
            # Step by step it may work, or raise where it happens.
            self.launch.stepped.add(op)
            self.commands = []
            return False
        finally:
            self.open_loops = open_loops
            self._trying -= 1
        self._finish(frame, op)
        return True

    def _while(self, frame: Frame, op: Op) -> None:
        before = op.regions[0]
        inits = tuple(self.get(value) for value in op.operands)
        self.recording.enter_loop(op.line)
        self._enter(Frame(op, before, before.entry, carried=inits, records=True), inits)

    def _decide_while(self, frame: Frame, op: Op) -> None:
        going = self.decide(op, op.operands[0])
        held = [self.get(value) for value in op.operands[1:]]
        if not going:
            assert frame.op is not None
            self._record_decision(frame.op)
            self._leave(held)
            return
        assert frame.op is not None
        frame.region = frame.op.regions[1]
        self._go_to(frame, frame.region.entry, held)

    def _if(self, frame: Frame, op: Op) -> None:
        condition = self.get(op.operands[0])
        if isinstance(condition, Predicate) and not condition.is_uniform:
            self._trying += 1
            try:
                chosen = choose_both_ways(self, op, condition)
            finally:
                self._trying -= 1
            if chosen is not None:
                for value, held in zip(op.results, chosen, strict=True):
                    self.set(value, held)
                frame.position += 1
                return
        taken = 0 if self.decide(op, op.operands[0]) else 1
        if taken >= len(op.regions) or not op.regions[taken].blocks:
            frame.position += 1
            return
        region = op.regions[taken]
        self._enter(Frame(op, region, region.entry), ())

    def _call(self, frame: Frame, op: Op) -> None:
        depth = sum(each.outer is not None for each in self.frames)
        function = self.callee(op, depth)
        arguments = [self.get(value) for value in op.operands]
        inner = Frame(op, function.body, function.body.entry, outer=dict(self._values))
        self._enter(inner, arguments)


_ENTER: dict[str, Callable[[Strand, Frame, Op], None]] = {
    "scf.for": Strand._for,
    "scf.while": Strand._while,
    "scf.if": Strand._if,
    "tt.call": Strand._call,
}
