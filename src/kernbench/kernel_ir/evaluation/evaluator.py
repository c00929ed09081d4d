"""The evaluator: what values are and what operations emit, on one path through a kernel.

What operations do is handed in, by name (:mod:`kernbench.kernel_ir.ops`); which programs take a
path together is decided in :mod:`kernbench.kernel_ir.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PROGRAM,
    Access,
    AddressOverflow,
    Alignment,
    Command,
    Hint,
    MaskTile,
    Math,
    MathClass,
    Operand,
    Param,
    Predicate,
    Roundings,
    Separable,
    Splat,
    Tile,
    axis_dim,
    constant,
    divided,
    is_loop,
    programs,
    uniform,
)
from kernbench.dtypes import Array, DType, bool_, int64
from kernbench.errors import NeedsDataError, UnsupportedOpError, UsageError, nearest
from kernbench.kernel_ir.analysis.layouts import vectors_of_reductions
from kernbench.kernel_ir.evaluation.hints import note_hints
from kernbench.kernel_ir.evaluation.values import (
    ABSOLUTE,
    Descriptor,
    Held,
    Pointer,
    SharedBuffer,
    to_operand,
)
from kernbench.kernel_ir.text.ir import Block, Function, Module, Op, Parameter, Region, Type, Value

_TERMINATORS = frozenset(
    {
        "scf.yield",
        "scf.condition",
        "tt.return",
        "tt.reduce.return",
        "tt.scan.return",
        "tt.map_elementwise.return",
    }
)
_MAX_JUMPS = 100_000
_MAX_CALLS = 100
_MAX_EVALUATED = 1_000_000
_MOST_CUTS = 8
"""A loop that has to be cut more often is evaluated one iteration after another."""
_LONG_MASK = 1 << 20
_UNKNOWN = "this operation is not simulated; write it with others of triton.language"
_OF_GPUS = {
    "ttng": "it is for NVIDIA's GPUs alone, and not simulated; write it in Triton",
    "amdg": "it is for AMD's GPUs alone, and not simulated; write it in Triton",
}
"""What to do about operations that the evaluator does not know, by dialect."""
_NOTHING = Op("scf.yield", (), (), {}, (), None, 0)  # type: ignore[arg-type]
"""The terminator of a block that prints none."""


class SplitPrograms(Exception):  # noqa: N818 - a signal to the driver, not an error
    """Programs diverge: ``labels`` names the path of each program of the group.

    ``may_share``: loops that the programs of a part go around differently often may be shared.
    """

    def __init__(self, labels: Array, may_share: bool = False) -> None:
        super().__init__(labels)
        self.labels = labels
        self.may_share = may_share


class TripsDiffer(SplitPrograms):
    """Programs have different trip counts in a loop: ``labels``, one per program."""


class UnrollLoops(Exception):  # noqa: N818 - as above
    """These loops cannot be rolled as a whole: their iterations differ.

    ``cuts`` are the iterations at which a loop becomes another that can be rolled; none where each
    iteration has to be evaluated by itself.
    """

    def __init__(self, loops: frozenset[Op], cuts: frozenset[int] = frozenset()) -> None:
        super().__init__(loops)
        self.loops = loops
        self.cuts = cuts

    def beside(self, unrolled: Mapping[Op, frozenset[int]]) -> dict[Op, frozenset[int]]:
        """Return the cuts of all loops, with those that are known of already."""
        cuts = dict(unrolled)
        for loop in self.loops:
            known = cuts.get(loop, self.cuts)
            both = known | self.cuts if known and self.cuts else frozenset[int]()
            cuts[loop] = both if len(both) <= _MOST_CUTS else frozenset()
        return cuts


class Evaluator:
    """One walk over a kernel for a group of programs that take the same path."""

    def __init__(
        self,
        module: Module,
        grid: tuple[int, int, int],
        program_ids: npt.NDArray[np.int64],
        unrolled: Mapping[Op, frozenset[int]],
        num_stages: int,
        roundings: Roundings,
        num_slots: int,
        num_loops: int,
        handlers: Mapping[str, Callable[[Evaluator, Op], None]],
        costs: Mapping[str, MathClass],
        shared: Any = None,
    ) -> None:
        self.module = module
        self.shared = shared
        """What shared memory holds that the kernel manages itself; None where it does not."""
        self.grid = grid
        self.program_ids = program_ids
        self.unrolled = unrolled
        """The loops that are not rolled as a whole, and where they are cut."""
        self.num_stages = num_stages
        self.roundings = roundings
        self.num_slots = num_slots
        self.num_loops = num_loops
        self._handlers = handlers
        self._costs = costs
        self.open_loops: dict[int, tuple[Op, int]] = {}
        """The loops that are being rolled around the current operation, and from which iteration
        on, by their dim."""
        self.commands: list[Command] = []
        self.call_depth = 0
        self._num_evaluated = 0
        self.overflowed: dict[Op, int] = {}
        """Operations of 32 bits whose exact result does not fit, and one such result."""
        self.overflows: dict[tuple[Op, Op], AddressOverflow] = {}
        """Those that became part of an address: by the operation and where it was added."""
        self.hints: list[Hint] = []
        """What the kernel says of values that are no data."""
        self.alignments: dict[Alignment, None] = {}
        """What the addresses of arguments must be multiples of, in the order of the kernel."""
        self.shares_loops = False
        """Whether loops that programs go around differently often are planned for the longest."""
        self.is_probe = False
        """Whether programs that do not go around a shared loop are taken to do so once."""
        self.trips: dict[int, Separable] = {}
        """Trip counts by program of such loops, by loop id."""
        self.values: dict[Value, Held] = {}

    def run(self, ints: Mapping[int, int]) -> tuple[Command, ...]:
        kernel = self.module.kernel
        self.run_region(kernel.body, self._arguments(kernel, ints))
        return self.finished(self.commands)

    @cached_property
    def vectors_of_reductions(self) -> Mapping[Op, int]:
        """How many elements of each reduction's tile a thread of a GPU has in a row."""
        return vectors_of_reductions(self.module.kernel.body)

    def finished(self, commands: list[Command]) -> tuple[Command, ...]:
        """Return the commands of a body that has been evaluated."""
        return tuple(commands) if self.shared is None else self.shared.finished(commands)

    def _arguments(self, kernel: Function, ints: Mapping[int, int]) -> list[Held]:
        arguments: list[Held] = []
        for param in kernel.params:
            type_ = param.type
            if param.value.type.is_descriptor:
                arguments.append(self._descriptor(kernel, param, ints))
            elif type_.is_pointer:
                arguments.append(Pointer(param.index, Separable(())))
            elif type_.is_int or type_.is_bool:
                if param.index not in ints:
                    raise UsageError(
                        f"integer parameter {param.index} ({param.name}) of {kernel.name} must "
                        f"have a value, but only {sorted(ints)} have one"
                    )
                number = int(ints[param.index])
                if type_.is_bool:
                    arguments.append(constant(bool(number)))
                else:
                    half = 1 << (type_.bits - 1)
                    arguments.append(uniform(((number + half) & (2 * half - 1)) - half))
            elif type_.is_float and type_.dtype is not None:
                arguments.append(Param(param.index, (), type_.dtype))
            else:
                raise UnsupportedOpError(
                    f"parameter {param.name} of kernel {kernel.name} has type {type_}, "
                    "which is not supported yet"
                )
        return arguments

    def _descriptor(
        self, kernel: Function, param: Parameter, ints: Mapping[int, int]
    ) -> Descriptor:
        """Return a descriptor that the host made: its lengths and strides are the next ones."""
        block = param.value.type
        rank = len(block.shape)
        assert block.dtype is not None
        parts = [ints.get(index) for index in range(param.index + 1, param.index + 1 + 2 * rank)]
        known = tuple(uniform(part) for part in parts if part is not None)
        if len(known) != 2 * rank:
            raise UsageError(
                f"descriptor {param.name} of {kernel.name} must have {rank} lengths and as many "
                f"strides, but only {sorted(ints)} have a value"
            )
        base = Pointer(param.index, Separable(()))
        return Descriptor(base, known[:rank], known[rank:], block.shape, block.dtype)

    # -- values -------------------------------------------------------------------------------

    def get(self, value: Value) -> Held:
        return self.values[value]

    def set(self, value: Value, held: Held) -> None:
        self.values[value] = held

    def integer(self, op: Op, index: int) -> Separable:
        """Return an operand that must be an integer known to phase 1."""
        held = self.get(op.operands[index])
        if not isinstance(held, Separable):
            raise self.needs_data(op, f"operand {index} depends on data")
        return held

    def operand(self, op: Op, index: int) -> Operand:
        """Return an operand as data."""
        value = op.operands[index]
        held = self.values[value]
        return held if type(held) is Tile else self.as_data(op, held, value.type)

    def as_data(self, op: Op, held: Held, type_: Type) -> Operand:
        if isinstance(held, Pointer):
            return to_operand(self.address(op, held), int64)
        if type_.is_descriptor or type_.is_pointer or isinstance(held, SharedBuffer):
            raise self.unsupported(op, f"a value of type {type_} is used as data")
        if type_.dtype is None:
            raise self.unsupported(op, f"a value has type {type_}")
        assert not isinstance(held, Descriptor)
        return to_operand(held, type_.dtype)

    def address(self, op: Op, pointer: Pointer) -> Separable | Tile:
        """Return a pointer's address as an integer.

        Raises:
            NeedsDataError: It points into a tensor: where that lies, only a launch knows.
        """
        if pointer.param != ABSOLUTE:
            raise self.needs_data(op, "it depends on where a tensor lies")
        if pointer.gather is None:
            return pointer.offset
        known = self.known_as_data(pointer.offset, int64)
        return self.emit_math(op, "arith.addi", [pointer.gather, known], MathClass.SIMPLE)

    def check_aligned(self, op: Op, pointer: Pointer, multiple: int) -> None:
        """Demand that an address be a multiple of some bytes, now or when a launch knows it."""
        residues = np.unique(pointer.offset.dense(pointer.offset.dims) % multiple).tolist()
        alignments = [Alignment(pointer.param, residue, multiple, op.line) for residue in residues]
        self.alignments.update(dict.fromkeys(alignments))

    def check_reachable(self, op: Op, access: Access) -> None:
        """Refuse an access whose address is known only at launch.

        Raises:
            NeedsDataError: Its address was made from an integer.
        """
        if access.param == ABSOLUTE:
            raise self.needs_data(op, "its address was made from an integer")

    @staticmethod
    def dtype_of(value: Operand) -> DType:
        """Return the element type of data."""
        return _dtype(value)

    def new_tile(self, shape: tuple[int, ...], dtype: DType) -> Tile:
        self.num_slots += 1
        return Tile(self.num_slots - 1, shape, dtype)

    def result_tile(self, op: Op, index: int = 0) -> Tile:
        """Return a new tile of the type of one of the op's results."""
        type_ = op.results[index].type
        if type_.dtype is None or type_.is_descriptor:
            raise self.unsupported(op, f"its result has type {type_}")
        return self.new_tile(type_.shape, int64 if type_.is_pointer else type_.dtype)

    def math(
        self,
        op: Op,
        attrs: dict[str, Any] | None = None,
        cost: MathClass | None = None,
        inputs: Sequence[Operand] = (),
    ) -> None:
        """Emit the op as a command on data, its operands if none is given; set its result.

        It has its own cost if none is given.
        """
        inputs = inputs or [self.operand(op, index) for index in range(len(op.operands))]
        if cost is None:
            cost = self._costs[op.name]
        dst = self.result_tile(op)
        self.commands.append(Math(dst, op.name, tuple(inputs), cost, op.line, attrs or {}))
        self.set(op.results[0], dst)

    def emit_math(
        self,
        op: Op,
        name: str,
        inputs: Sequence[Operand],
        cost: MathClass,
        dtype: DType = int64,
        shape: tuple[int, ...] | None = None,
        attrs: dict[str, Any] | None = None,
    ) -> Tile:
        """Emit a command that the op implies, such as address arithmetic; return its result."""
        dst = self.new_tile(inputs[0].shape if shape is None else shape, dtype)
        self.commands.append(Math(dst, name, tuple(inputs), cost, op.line, attrs or {}))
        return dst

    def known_as_data(self, value: Separable, dtype: DType) -> Operand:
        """Return a known integer tensor as data."""
        return to_operand(value, dtype)

    def as_shape(self, op: Op, value: Operand, shape: tuple[int, ...]) -> Operand:
        """Return data with as many elements in another shape."""
        if value.shape == shape:
            return value
        return self.emit_math(op, "tt.reshape", [value], MathClass.FREE, _dtype(value), shape)

    def byte_offsets(self, op: Op, offsets: Operand, scale: int) -> Tile:
        """Return data offsets in elements as ``int64`` bytes."""
        wide: Operand = offsets
        if _dtype(offsets).itemsize < int64.itemsize:
            wide = self.emit_math(op, "arith.extsi", [offsets], MathClass.CONVERT)
        return self.emit_math(
            op, "arith.muli", [wide, Splat(scale, wide.shape, int64)], MathClass.SIMPLE
        )

    # -- control flow -------------------------------------------------------------------------

    def run_ops(self, ops: Sequence[Op]) -> None:
        self._num_evaluated += len(ops)
        if self._num_evaluated > _MAX_EVALUATED:
            raise self.unsupported(
                ops[0],
                f"the kernel takes more than {_MAX_EVALUATED:,} operations to plan, as loops that "
                "cannot be rolled are evaluated one iteration after another; is a bound wrong?",
            )
        for op in ops:
            handler = self._handlers.get(op.name)
            if handler is None:
                raise self.unsupported(op, _OF_GPUS.get(op.dialect, _UNKNOWN))
            handler(self, op)
            self.note_hints(op)

    def note_hints(self, op: Op) -> None:
        """Keep what a kernel says of the result of an operation."""
        attrs = op.attrs
        if attrs and (
            "tt.divisibility" in attrs or "tt.contiguity" in attrs or "tt.constancy" in attrs
        ):
            note_hints(self, op)

    def run_block(self, block: Block, arguments: Sequence[Held]) -> Op:
        """Run a block up to its terminator, which is returned."""
        if len(arguments) != len(block.args) or not block.ops:
            raise UnsupportedOpError(
                f"a block of kernel {self.module.kernel.name} must have {len(arguments)} arguments "
                f"and a terminator, but has {len(block.args)} and {len(block.ops)} operations"
            )
        for arg, held in zip(block.args, arguments, strict=True):
            self.set(arg, held)
        last = block.ops[-1]
        if last.name in _TERMINATORS or last.successors:
            self.run_ops(block.ops[:-1])
            return last
        # `scf.if` and `scf.for` without results print no terminator.
        self.run_ops(block.ops)
        return _NOTHING

    def run_region(self, region: Region, arguments: Sequence[Held] = ()) -> list[Held]:
        """Run a region and return what its terminator yields."""
        blocks = {block.label: block for block in region.blocks}
        block = region.entry
        for _ in range(_MAX_JUMPS):
            if not block.ops and not arguments:
                return []
            last = self.run_block(block, arguments)
            if not last.successors:
                return [self.get(value) for value in last.operands]
            successor = last.successors[0]
            if len(last.successors) > 1 and not self.decide(last, last.operands[0]):
                successor = last.successors[1]
            arguments = [self.get(value) for value in successor.operands]
            if successor.label not in blocks:
                raise self.unsupported(last, f"there is no block {successor.label}")
            block = blocks[successor.label]
        raise UnsupportedOpError(
            f"kernel {self.module.kernel.name} jumps more than {_MAX_JUMPS} times: does it end?"
        )

    def callee(self, op: Op, depth: int) -> Function:
        """Return the function that a ``tt.call`` runs, with ``depth`` calls around it."""
        name = str((op.attrs.get("literals") or ("",))[0]).removeprefix("@").strip('"')
        function = self.module.functions.get(name)
        if function is None:
            raise self.unsupported(op, nearest(name, self.module.functions))
        if depth >= _MAX_CALLS:
            raise self.unsupported(op, f"{name} calls itself more than {_MAX_CALLS} times")
        return function

    def call(self, op: Op) -> list[Held]:
        """Run a function of the module on the op's operands."""
        function = self.callee(op, self.call_depth)
        self.call_depth += 1
        # A function may be on the stack twice: its values are put back afterwards.
        saved = dict(self.values)
        results = self.run_region(function.body, [self.get(value) for value in op.operands])
        self.values = saved
        self.call_depth -= 1
        return results

    def decide(self, op: Op, value: Value) -> bool:
        """Return a condition's truth value.

        Raises:
            SplitPrograms: It differs between programs.
            UnrollLoops: It differs between iterations of a rolled loop.
            NeedsDataError: It depends on data.
        """
        held = self.get(value)
        if isinstance(held, Predicate):
            if held.is_uniform:
                return held.is_true
            return bool(self._in_all(held))
        if isinstance(held, Splat):
            return bool(held.value)
        raise self.needs_data(op, "its condition depends on data")

    def uniform_integer(self, value: Separable) -> int:
        """Return an integer that steers control flow; raises as :meth:`decide`."""
        value = value.trimmed()
        if value.is_uniform:
            return value.const
        return int(self._in_all(value))

    def trip_count(self, op: Op, trips: Separable) -> tuple[int, Separable | None]:
        """Return a loop's greatest trip count and, where programs share it, that of each program.

        Raises:
            TripsDiffer: They differ, and the loop is not shared.
            SplitPrograms: Some programs do not go around it at all.
        """
        try:
            return self.uniform_integer(trips), None
        except SplitPrograms as split:
            counts = split.labels.reshape(-1)
            if not self.shares_loops or op in self.unrolled:
                raise TripsDiffer(counts) from None
            if not counts.min() and not self.is_probe:
                raise SplitPrograms(counts > 0, may_share=True) from None
            return int(counts.max()), programs(np.maximum(counts, 1))

    def _in_all(self, held: Predicate | Separable) -> Any:
        """Return the one value that all programs and iterations have; raises as :meth:`decide`."""
        dims, cuts = held.dims, frozenset[int]()
        loops = [self.open_loops[dim] for dim in dims if is_loop(dim)]
        unrolled = frozenset(op for op, _ in loops)
        if loops and len(dims) > 1 and isinstance(held, Predicate):
            # Of programs and of iterations there may be few terms, and very many of both.
            raise UnrollLoops(unrolled)
        dense = held.dense(dims)
        first = dense.reshape(-1)[0]
        if (dense == first).all():
            return first
        if not loops:
            raise SplitPrograms(dense)
        changes = np.flatnonzero(dense[1:] != dense[:-1]) + 1 if dense.ndim == 1 else ()
        if self.shared is None and len(changes) <= _MOST_CUTS:
            cuts = frozenset(loops[0][1] + int(change) for change in changes)
        raise UnrollLoops(unrolled, cuts)

    def split_partial(self, mask: Predicate) -> None:
        """Give programs that a long mask cuts off a group of their own.

        Most programs of an elementwise kernel use all of their elements. Where the mask would take
        a million elements or more it pays to let them run without one.
        """
        if len(mask.shape) != 1 or mask.dims != (PROGRAM, axis_dim(0)):
            return
        whole = np.ones(len(self.program_ids), dtype=np.bool_)
        none = ~whole
        for dims, array in mask.terms.items():
            if dims == mask.dims:
                if array.size < _LONG_MASK:
                    return
                whole &= array.all(axis=1)
                none |= ~array.any(axis=1)
        labels = whole + 2 * none
        if (labels != labels[0]).any():
            raise SplitPrograms(labels)

    def attempt(self) -> Attempt:
        """Return a context whose commands are dropped when it ends."""
        return Attempt(self)

    def program_id(self, axis: int) -> Separable:
        x, y, _ = self.grid
        ids = self.program_ids
        values = divided(ids, x)[1] if axis == 0 else divided(ids // x, y)[axis == 1]
        return programs(values).trimmed()

    def unsupported(self, op: Op, reason: str) -> UnsupportedOpError:
        return UnsupportedOpError(f"{self.place(op)} is not supported: {reason}")

    def needs_data(self, op: Op, reason: str) -> NeedsDataError:
        return NeedsDataError(f"{self.place(op)} needs data: {reason}")

    def place(self, op: Op) -> str:
        """Return how errors name an operation, its kernel and its line."""
        where = f"at {op.line}" if op.line.file else f"(line {op.text_line} of the TTIR text)"
        return f"{op.name} in kernel {self.module.kernel.name} {where}"


def _dtype(value: Operand) -> DType:
    return bool_ if isinstance(value, MaskTile) else value.dtype


class Attempt:
    """A trial: commands are kept apart, and tile and loop numbers are restored when it ends."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.commands: list[Command] = []

    def __enter__(self) -> Attempt:
        run = self.evaluator
        self._before = run.commands, run.num_slots, run.num_loops, dict(run.open_loops)
        self._overflows = dict(run.overflowed), dict(run.overflows)
        self._trips = dict(run.trips)
        self._told = list(run.hints), dict(run.alignments)
        self._shared = None if run.shared is None else run.shared.copy()
        run.commands = self.commands
        return self

    def __exit__(self, *_: object) -> None:
        run = self.evaluator
        run.commands, run.num_slots, run.num_loops, run.open_loops = self._before
        run.overflowed, run.overflows = self._overflows
        run.trips = self._trips
        run.hints, run.alignments = self._told
        run.shared = self._shared
