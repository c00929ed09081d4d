"""A strand: programs of a launch that have agreed on every decision so far, run on data.

It is the evaluator of ``kernel_ir`` with three differences. Commands are executed as soon as an
operation has emitted them. A scalar that was data (a loaded trip count, what an atomic found) is
from then on a number per program, as if phase 1 had known it. And control flow
(:mod:`~kernbench.interleaved.control_flow`) is a stack of its own and not Python's, so that
a strand can stop anywhere, be split, and resume later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    Command,
    MathClass,
    Predicate,
    Separable,
    Tile,
    uniform,
)
from kernbench.dtypes import Array, DType, bool_
from kernbench.interleaved.control_flow import (
    CONTROL_FLOW,
    TERMINATORS,
    RegionFrame,
    end_block,
    end_region,
    enter_region,
)
from kernbench.interleaved.execution import execute, place
from kernbench.interleaved.pacing import Decisions, Watched, parts_of, watch
from kernbench.interleaved.recording import Recording
from kernbench.interleaved.undefined import (
    UndefinedScalars,
    check_accesses,
    check_decision,
    follow,
    note_scalar,
    part_of,
)
from kernbench.interleaved.values import PickedRows, as_known, of_programs, slots_of
from kernbench.kernel_ir import (
    ABSOLUTE,
    COSTS,
    HANDLERS,
    Evaluator,
    Held,
    Op,
    Pointer,
    SplitPrograms,
    Value,
    check_alignment,
    emit_load,
)

if TYPE_CHECKING:
    from kernbench.interleaved.launch import InterleavedLaunch


_KEPT_BYTES = 32 << 20
"""How much new data makes a strand look for dead values."""


class Strand(Evaluator):
    """One strand of a launch. It ends when its programs return."""

    def __init__(self, launch: InterleavedLaunch, program_ids: Array) -> None:
        super().__init__(
            launch.module,
            launch.grid,
            program_ids,
            {},
            launch.num_stages,
            launch.roundings,
            num_slots=0,
            num_loops=0,
            handlers=HANDLERS,
            costs=COSTS,
        )
        self.launch = launch
        self.frames: list[RegionFrame] = []
        self.data: dict[int, PickedRows] = {}
        self.recording = Decisions() if launch.is_paced else Recording(self.module.kernel.line)
        self.polled = False
        """Whether memory was read since the strand last yielded."""
        self.stuck_at: int | None = None
        """The version of memory at which another iteration would change nothing."""
        self.loop_line = self.module.kernel.line
        """The line of the loop in which the strand last yielded."""
        self.parts: list[tuple[Command, ...]] = []
        """In a paced launch: the parts of the current operation, which its pacer performs."""
        self.watched: list[Watched] = []
        """In a paced launch: what the current iteration has read."""
        self.is_waiting = False
        """In a paced launch: whether it yielded until memory changes."""
        self._settling: tuple[RegionFrame, Op]
        self._polling: tuple[Tile, tuple[Command, ...]]
        self.turn_began_at: int | None = None
        """The version of memory at the start of the current iteration."""
        self.may_give_up = False
        """Whether its wait has a timeout."""
        self.timeout_ns = 0
        """The timeout."""
        self.gives_up = False
        """Whether it has expired."""
        self.trying = 0
        """How many enclosing operations are being tried as one command."""
        self.undefined = UndefinedScalars()
        """Known scalars that a watch found to be undefined."""
        self._free: list[int] = []
        self._prune_at = 256
        self._new_bytes = 0
        self._most_bytes = _KEPT_BYTES

    def begin(self) -> None:
        """Enter the kernel."""
        kernel = self.module.kernel
        frame = RegionFrame(None, kernel.body, kernel.body.entry)
        enter_region(self, frame, self._arguments(kernel, self.launch.ints))

    def split(self, labels: Array) -> list[Strand]:
        """Return the parts of the strand, the one with the lowest program first."""
        values, where = np.unique(labels.reshape(-1), return_inverse=True)
        parts = [np.flatnonzero(where == index) for index in range(len(values))]
        parts.sort(key=lambda part: int(part[0]))
        self._prune()
        return [self._part(positions) for positions in parts]

    def _part(self, positions: Array) -> Strand:
        other = Strand(self.launch, self.program_ids[positions])
        other.values = {v: of_programs(held, positions) for v, held in self.values.items()}
        other.data = {slot: rows.take(positions) for slot, rows in self.data.items()}
        other.frames = [frame.of_programs(positions) for frame in self.frames]
        other.recording = self.recording.copy()
        other.num_slots, other.num_loops = self.num_slots, self.num_loops
        other._free = list(self._free)
        other.polled, other.turn_began_at = self.polled, self.turn_began_at
        other.watched = list(self.watched)
        if self.undefined:
            part_of(self, other, positions)
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

    def decide(self, op: Op, value: Value) -> bool:
        if self.undefined:
            check_decision(self, op, (value,))
        return super().decide(op, value)

    def trip_count(self, op: Op, trips: Separable) -> tuple[int, Separable | None]:
        if self.undefined:
            check_decision(self, op, op.operands[:3])
        return super().trip_count(op, trips)

    def address(self, op: Op, pointer: Pointer) -> Separable | Tile:
        if pointer.param != ABSOLUTE:
            base = uniform(self.launch.memory.address(pointer.param))
            pointer = Pointer(ABSOLUTE, pointer.offset + base, pointer.gather)
        return super().address(op, pointer)

    def check_reachable(self, op: Op, access: Access) -> None:
        if access.param == ABSOLUTE and self.trying:
            raise self.needs_data(op, "its address was made from an integer")

    def check_aligned(self, op: Op, pointer: Pointer, multiple: int) -> None:
        start = 0
        if pointer.param != ABSOLUTE:
            start = self.launch.memory.address(pointer.param)
        for address in (pointer.offset.dense(pointer.offset.dims) + start).reshape(-1).tolist():
            check_alignment(self.module.kernel.name, op.line, "its base", address, multiple)

    def split_partial(self, mask: Predicate) -> None:
        """Do nothing: strands are short, so splitting one for a mask does not pay."""

    def _resolved(self, pointer: Pointer) -> Pointer:
        """Return a scalar pointer relative to the buffer that it points into.

        Raises:
            SplitPrograms: That is another one for other programs.
        """
        if pointer.gather is not None or any(dim != PROGRAM for dim in pointer.offset.dims):
            return pointer
        memory = self.launch.memory
        array = memory.find_all(pointer.offset.dense((PROGRAM,)))
        if (array != array[0]).any():
            raise SplitPrograms(array)
        index = int(array[0])
        if index < 0:
            # Nothing is wrong as long as it is not accessed.
            return pointer
        return Pointer(index, pointer.offset - uniform(memory.buffer(index).address))

    def array(self, tile: Tile) -> Array:
        """Return the data of a tile, ``[programs, *tile]``.

        Raises:
            NeedsDataError: Nobody knows it: the run has no data.
        """
        rows = self.data.get(tile.slot)
        if rows is None:
            frame = self.frames[-1]
            raise self.needs_data(frame.block.ops[frame.position], "where it goes depends on data")
        return rows.array

    def bytes_of(self, tile: Tile) -> bytes | None:
        """Return the data of a tile as bytes, None if it is unknown."""
        return self.array(tile).tobytes() if tile.slot in self.data else None

    def keep_shadow(self, slot: int, shadow: Array | None) -> None:
        """Take what a watch knows about the data of a slot; None is nothing."""
        if shadow is None:
            self.data.pop(~slot, None)
        else:
            self.data[~slot] = PickedRows(shadow)

    def keep(self, slot: int, array: Array) -> None:
        """Take an array as the data of a slot."""
        self.data[slot] = PickedRows(array)
        self._new_bytes += array.nbytes

    def _prune(self) -> None:
        """Drop dead values, and the data of tiles that no value names."""
        for frame in self.frames:
            for value, last in self.launch.liveness.last_uses(frame.block).items():
                if last < frame.position:
                    self.values.pop(value, None)
        used: set[int] = set()
        environments = [self.values, *(f.outer for f in self.frames if f.outer is not None)]
        for environment in environments:
            for held in environment.values():
                used.update(slots_of(held))
        for frame in self.frames:
            for held in frame.carried or ():
                used.update(slots_of(held))
        if self.undefined:
            self.undefined.keep(
                held for environment in environments for held in environment.values()
            )
        # A watch's knowledge about a slot is at ~slot.
        self.data = {slot: rows for slot, rows in self.data.items() if max(slot, ~slot) in used}
        self._free = [slot for slot in range(self.num_slots) if slot not in used]
        self._prune_at = 2 * len(used) + 256
        self._new_bytes = 0
        kept_bytes = sum(rows.size_bytes for rows in self.data.values())
        self._most_bytes = max(_KEPT_BYTES, kept_bytes)

    def forget(self) -> None:
        """Drop all values and data: the programs have returned, and only the record matters."""
        self.values = {}
        self.data = {}

    # -- one operation after the other --------------------------------------------------------

    def advance(self) -> bool:
        """Run until all programs have returned (False) or the strand yields (True).

        In a paced launch it is also when an operation has :attr:`parts`.

        Raises:
            SplitPrograms: The programs disagree; the parts resume at the same operation.
        """
        if self.turn_began_at is None:
            self.turn_began_at = self.launch.memory.version
        self.is_waiting = False
        while self.frames and not self.parts:
            frame = self.frames[-1]
            ops = frame.block.ops
            if frame.position >= len(ops):
                # `scf.if` and `scf.for` without results print no terminator.
                if end_region(self, frame, ()):
                    return True
                continue
            op = ops[frame.position]
            if op.name in TERMINATORS or op.successors:
                if end_block(self, frame, op):
                    return True
                continue
            self.commands = []
            enter = CONTROL_FLOW.get(op.name)
            if enter is not None:
                enter(self, frame, op)
            elif op.name == "tt.atomic_poll":
                if self._poll(frame, op):
                    return True
            else:
                self._run_plain(frame, op)
        return bool(self.parts)

    def _run_plain(self, frame: RegionFrame, op: Op) -> None:
        handler = HANDLERS.get(op.name)
        if handler is None:
            self.run_ops((op,))
            return
        handler(self, op)
        self.note_hints(op)
        self.finish(frame, op)

    def finish(self, frame: RegionFrame, op: Op) -> None:
        """Execute what an operation has emitted, and take its scalars as known."""
        watch = self.launch.watch
        if watch is not None and self.overflows:
            watch.refuse(self.overflows.values())
        if self.hints:
            if watch is not None:
                watch.refuse_hints(self.hints, self.program_ids)
            self.hints = []
        commands = place(self, op, tuple(self.commands))
        self.commands = []
        if self.undefined:
            check_accesses(self, op, commands)
        if commands and self.launch.is_paced:
            self._hand_out(commands, frame, op)
            return
        if commands:
            execute(self, commands)
            self.recording.add(self.program_ids, commands, self._take_results(op))
        elif self.undefined:
            follow(self, op)
        self._pass(frame)

    def _hand_out(self, commands: tuple[Command, ...], frame: RegionFrame, op: Op) -> None:
        """Leave the commands of an operation to the pacer of the launch."""
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
        """Resume after the operation whose parts have all been performed.

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
        if self.undefined and not op.regions:
            follow(self, op)
        for result in op.results:
            decisive |= self._take_as_known(result)
        return decisive

    def _pass(self, frame: RegionFrame) -> None:
        frame.position += 1
        if len(self.data) > self._prune_at or self._new_bytes > self._most_bytes:
            self._prune()

    def _take_as_known(self, result: Value) -> bool:
        held = self.values.get(result)
        if not isinstance(held, Tile | Pointer) or held.shape:
            return False
        if isinstance(held, Pointer):
            if held.param != ABSOLUTE or held.gather is None or held.gather.slot not in self.data:
                return False
            known = as_known(self.array(held.gather))
            assert isinstance(known, Separable)
            self.set(result, Pointer(ABSOLUTE, held.offset + known))
            note_scalar(self, result, held.gather.slot)
            return True
        if held.slot not in self.data or held.dtype.is_floating_point:
            return False
        super().set(result, as_known(self.array(held)))
        note_scalar(self, result, held.slot)
        return True

    # -- polls --------------------------------------------------------------------------------

    def _poll(self, frame: RegionFrame, op: Op) -> bool:
        """Read what a poll waits for; return whether the strand yields.

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

    def _look(self, frame: RegionFrame, op: Op) -> bool:
        """Resume after a poll if memory holds what it waits for; return whether it must wait.

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
            self.polled, self.turn_began_at = False, None
            return True
        self.recording.leave_loop()
        frame.is_polling = self.gives_up = self.may_give_up = False
        self.stuck_at = None
        self.set(op.results[0], flags if flags.shape else as_known(seen))
        frame.position += 1
        return False
