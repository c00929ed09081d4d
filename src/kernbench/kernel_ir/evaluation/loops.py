"""``scf.for`` as a rolled Loop: what it carries gets a closed form, or is carried as data.

Integers and pointers that phase 1 knows must not be carried by the trace; they become tensors that
vary over the loop's dim. First the affine guess: evaluate one iteration, take the difference to
the start as the advance, and check by evaluating again at ``init + k * advance`` that every
iteration advances by just that. If the guess fails, all iterations are evaluated one after another
on the integer part of the body alone, and stacked. What depends on data is carried as data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from kernbench.commands import (
    PROGRAM,
    Carried,
    Loop,
    NotSeparableError,
    Operand,
    Predicate,
    Separable,
    Splat,
    Tile,
    loop_dim,
    loop_index,
    stack,
    stack_predicates,
    uniform,
)
from kernbench.dtypes import int64
from kernbench.kernel_ir.analysis.live_tiles import num_stages_of
from kernbench.kernel_ir.evaluation import integers
from kernbench.kernel_ir.evaluation.evaluator import Evaluator, TripsDiffer, UnrollLoops
from kernbench.kernel_ir.evaluation.shared_memory import touches
from kernbench.kernel_ir.evaluation.values import (
    Held,
    Known,
    Leaf,
    Pointer,
    gather_of,
    is_known,
    leaves,
    same_frame,
    with_leaves,
)
from kernbench.kernel_ir.text.ir import Block, Op, Value


@dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of an ``scf.for``."""

    low: Separable
    step: Separable
    count: int
    """How many there are in the program that has most of them."""
    counts: Separable | None = None
    """The trip count of each program, where they differ."""
    first: int = 0
    """Which iteration of the kernel's loop is the first of these."""


def run_parts(run: Evaluator, op: Op, iterations: Iterations, inits: list[Held]) -> list[Held]:
    """Evaluate the parts between the loop's cuts, or each iteration; return what it yields."""
    held, count = inits, iterations.count
    cuts = run.unrolled[op] or range(1, count)
    for first, end in pairwise((0, *sorted(cut for cut in cuts if cut < count), count)):
        low = iterations.low + iterations.step * uniform(first)
        if end - first > 1:
            part = Iterations(low, iterations.step, end - first, first=first)
            held = run_rolled(run, op, part, held)
        else:
            index = integers.wrap(low, op.operands[0].type.bits)
            held = run.run_region(op.regions[0], [index, *held])
    return held


def run_rolled(run: Evaluator, op: Op, iterations: Iterations, inits: list[Held]) -> list[Held]:
    """Evaluate the body once for all iterations, emit a Loop, and return the loop's results."""
    return _RolledLoop(run, op, iterations, inits).emit()


@dataclass(frozen=True, slots=True)
class _Form:
    """A carried known value: inside the loop, and after it."""

    inside: Known
    after: Known


class _RolledLoop:
    def __init__(self, run: Evaluator, op: Op, iterations: Iterations, inits: list[Held]) -> None:
        self.run = run
        self.op = op
        self.low = low = iterations.low
        self.step = step = iterations.step
        self.trip_count = trip_count = iterations.count
        self.counts = iterations.counts
        self.first = iterations.first
        self.inits = inits
        self.block = op.regions[0].entry
        self.loop_id = run.num_loops
        run.num_loops += 1
        if self.counts is not None:
            run.trips[self.loop_id] = self.counts
        self.counter = loop_index(self.loop_id, 0, 1, trip_count)
        self.index = integers.wrap(low + step * self.counter, op.operands[0].type.bits)
        self.known: dict[int, Known] = {i: h for i, h in enumerate(inits) if is_known(h)}  # type: ignore[misc]
        self.gathers: set[int] = set()
        """Carried pointers whose gather part changes from one iteration to the next."""

    def emit(self) -> list[Held]:
        run, op = self.run, self.op
        dim = loop_dim(self.loop_id)
        run.open_loops[dim] = op, self.first
        manages = run.shared is not None and touches(op)
        if manages:
            if self.counts is not None:
                raise TripsDiffer(self.counts.dense((PROGRAM,)))
            run.shared.begin(op, self.loop_id, self.trip_count)
        forms = self._closed_forms()
        data: dict[int, tuple[Operand, Tile]] = {}
        for index in range(len(self.inits)):
            init = self._data_init(index)
            if init is not None:
                shape, dtype = init.shape, self._data_dtype(index)
                data[index] = (init, run.new_tile(shape, dtype))
        arguments = [self._argument(index, forms, data) for index in range(len(self.inits))]
        if manages:
            self._look_into(arguments, data)
        outer, run.commands = run.commands, []
        yielded = run.run_region(op.regions[0], [self.index, *arguments])
        body, run.commands = run.finished(run.commands), outer
        del run.open_loops[dim]
        stages = run.shared.leave(run) if manages else num_stages_of(op, run.num_stages)
        results: list[Held] = []
        carried: list[Carried] = []
        for index, held in enumerate(yielded):
            out: Held = forms[index].after if index in forms else held
            if index in data:
                init, arg = data[index]
                result = run.new_tile(arg.shape, arg.dtype)
                carried.append(Carried(init, arg, self._data_yield(index, held, arg), result))
                out = replace(out, gather=result) if isinstance(out, Pointer) else result
            results.append(out)
        run.commands.append(
            Loop(self.loop_id, self.trip_count, body, tuple(carried), stages, op.line)
        )
        return results

    def _look_into(self, arguments: list[Held], data: dict[int, tuple[Operand, Tile]]) -> None:
        """Find out what the body does to shared memory, and begin it for good."""
        run, op = self.run, self.op
        with run.attempt() as attempt:
            run.run_region(op.regions[0], [self.index, *arguments])
            result = run.shared.effects(attempt.commands)
        shared = run.shared
        shared.frames.pop()
        shared.enter(run, op, self.loop_id, self.trip_count, result)
        shared.inits.update({arg: (self.loop_id, init) for init, arg in data.values()})

    # -- data ---------------------------------------------------------------------------------

    def _data_init(self, index: int) -> Operand | None:
        """Return the start of what is carried as data at this position, or None."""
        init = self.inits[index]
        if index in self.gathers:
            assert isinstance(init, Pointer)
            return init.gather or Splat(0, init.shape, int64)
        if index in self.known:
            return None
        return self.run.as_data(self.op, init, self.op.results[index].type)

    def _data_dtype(self, index: int):  # type: ignore[no-untyped-def]
        if index in self.gathers:
            return int64
        return self.op.results[index].type.dtype

    def _data_yield(self, index: int, held: Held, arg: Tile) -> Operand:
        if index in self.gathers:
            assert isinstance(held, Pointer)
            return held.gather or Splat(0, arg.shape, int64)
        return self.run.as_data(self.op, held, self.op.results[index].type)

    def _argument(
        self, index: int, forms: dict[int, _Form], data: dict[int, tuple[Operand, Tile]]
    ) -> Held:
        tile = data[index][1] if index in data else None
        if index not in forms:
            assert tile is not None
            return tile
        inside = forms[index].inside
        if tile is not None and isinstance(inside, Pointer):
            return replace(inside, gather=tile)
        return inside

    # -- closed forms -------------------------------------------------------------------------

    def _closed_forms(self) -> dict[int, _Form]:
        """Return the closed form of every carried value that phase 1 knows."""
        while self.known:
            needed = Slice.of(self.block, frozenset(self.known))
            first = self._trial(needed, self.known, self.index)
            if self._demote(first):
                continue
            forms = self._affine(needed, first)
            return forms if forms is not None else self._stacked(needed)
        return {}

    def _trial(
        self, needed: Slice, arguments: dict[int, Known], index: Separable
    ) -> dict[int, Held]:
        """Evaluate the integer part of the body; return what it yields for the known values."""
        run = self.run
        with run.attempt():
            for position in needed.carried:
                type_ = self.op.results[position].type
                held: Held
                if position in arguments:
                    held = arguments[position]
                    if position in self.gathers and isinstance(held, Pointer):
                        held = replace(held, gather=Tile(-1, held.shape, int64))
                elif type_.dtype is None or type_.is_pointer:
                    raise UnrollLoops(frozenset({self.op}))
                else:
                    held = Tile(-1, type_.shape, type_.dtype)
                run.set(self.block.args[1 + position], held)
            run.set(self.block.args[0], index)
            run.run_ops(needed.ops)
            return {position: run.get(needed.yields[position]) for position in self.known}

    def _demote(self, yielded: dict[int, Held]) -> bool:
        """Carry as data what the body makes from data; return whether anything changed."""
        changed = False
        for position, held in yielded.items():
            init = self.known[position]
            if not is_known(held):
                if isinstance(init, Pointer):
                    raise UnrollLoops(frozenset({self.op}))
                del self.known[position]
                changed = True
                continue
            if not same_frame(init, held):  # type: ignore[arg-type]
                raise UnrollLoops(frozenset({self.op}))
            moves = gather_of(held) is not gather_of(init)  # type: ignore[arg-type]
            if moves and position not in self.gathers:
                self.gathers.add(position)
                changed = True
        return changed

    def _affine(self, needed: Slice, first: dict[int, Held]) -> dict[int, _Form] | None:
        """Return ``init + k * advance`` for all known values if that is what the body does."""
        dim = loop_dim(self.loop_id)
        advances: dict[int, tuple[Separable | None, ...]] = {}
        inside: dict[int, Known] = {}
        after: dict[int, Known] = {}
        ends = uniform(self.trip_count) if self.counts is None else self.counts
        for position, init in self.known.items():
            result = _advances(leaves(init), leaves(first[position]), dim)  # type: ignore[arg-type]
            if result is None:
                return None
            advances[position] = result
            try:
                starts = leaves(init)
                inside[position] = with_leaves(init, _moved(starts, result, self.counter))
                after[position] = with_leaves(init, _moved(starts, result, ends))
            except NotSeparableError:
                return None
        if any(separable is not None for advance in advances.values() for separable in advance):
            again = self._trial(needed, inside, self.index)
            for position, form in inside.items():
                held = again[position]
                if not is_known(held):
                    return None
                last = leaves(held)  # type: ignore[arg-type]
                expected = _moved(leaves(form), advances[position], uniform(1))
                if not all(_equal(a, b) for a, b in zip(last, expected, strict=True)):
                    return None
        return {position: _Form(inside[position], after[position]) for position in self.known}

    def _stacked(self, needed: Slice) -> dict[int, _Form]:
        """Evaluate every iteration of the integer part, and stack the values."""
        if self.counts is not None:
            # What each program holds after its own last iteration has no closed form.
            raise TripsDiffer(self.counts.dense((PROGRAM,)))
        values = dict(self.known)
        history: dict[int, list[tuple[Leaf, ...]]] = {position: [] for position in values}
        for iteration in range(self.trip_count):
            for position, value in values.items():
                history[position].append(leaves(value))
            index = self.low + self.step * uniform(iteration)
            yielded = self._trial(needed, values, index)
            for position, held in yielded.items():
                if not is_known(held) or not same_frame(values[position], held):  # type: ignore[arg-type]
                    raise UnrollLoops(frozenset({self.op}))
                values[position] = held  # type: ignore[assignment]
        forms = {}
        for position, rows in history.items():
            init = self.known[position]
            columns = tuple(self._stack(column) for column in zip(*rows, strict=True))
            forms[position] = _Form(with_leaves(init, columns), values[position])
        return forms

    def _stack(self, column: tuple[Leaf, ...]) -> Leaf:
        integers_ = [separable for separable in column if isinstance(separable, Separable)]
        if integers_:
            return stack(integers_, self.loop_id)
        return stack_predicates(
            [separable for separable in column if isinstance(separable, Predicate)], self.loop_id
        )


def _advances(
    starts: tuple[Leaf, ...], ends: tuple[Leaf, ...], dim: int
) -> tuple[Separable | None, ...] | None:
    """Return what each leaf advances by (None: it stays), or None if that varies over ``dim``."""
    advances: list[Separable | None] = []
    for start, end in zip(starts, ends, strict=True):
        if isinstance(start, Separable) and isinstance(end, Separable):
            advance = (end - start).trimmed()
            if dim in advance.dims:
                return None
            advances.append(None if advance.is_uniform and advance.const == 0 else advance)
        elif isinstance(start, Predicate) and isinstance(end, Predicate) and start.equals(end):
            advances.append(None)
        else:
            return None
    return tuple(advances)


def _moved(
    starts: tuple[Leaf, ...], advances: tuple[Separable | None, ...], count: Separable
) -> tuple[Leaf, ...]:
    moved: list[Leaf] = []
    for start, advance in zip(starts, advances, strict=True):
        if advance is None:
            moved.append(start)
        else:
            assert isinstance(start, Separable)
            moved.append(start + advance * count)
    return tuple(moved)


def _equal(a: Leaf, b: Leaf) -> bool:
    if isinstance(a, Separable) and isinstance(b, Separable):
        return a.equals(b)
    return isinstance(a, Predicate) and isinstance(b, Predicate) and a.equals(b)


@dataclass(frozen=True, slots=True)
class Slice:
    """The operations of a loop body that some of its yielded values are computed from."""

    ops: tuple[Op, ...]
    carried: frozenset[int]
    """Positions of the carried values that they read."""
    yields: tuple[Value, ...]

    @staticmethod
    def of(block: Block, positions: frozenset[int]) -> Slice:
        last = block.ops[-1] if block.ops else None
        yields = last.operands if last is not None and last.name == "scf.yield" else ()
        place = {arg: index for index, arg in enumerate(block.args[1:])}
        wanted = {yields[position] for position in positions}
        ops: list[Op] = []
        for op in reversed(block.ops[:-1]):
            if any(result in wanted for result in op.results):
                ops.append(op)
                wanted.update(op.reads())
        read = {place[value] for value in wanted if value in place}
        return Slice(tuple(reversed(ops)), frozenset(read | positions), yields)
