"""Regions that are functions of scalars.

``tt.reduce``, ``tt.scan`` and ``tt.map_elementwise`` apply them to elements. They become
straight-line commands. Where such a function branches on its arguments, both ways are computed and
one is chosen, as the lanes of a vector unit do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kernbench.commands import (
    Assert,
    CombineRegion,
    Command,
    Math,
    MathClass,
    Operand,
    Param,
    Splat,
    Tile,
)
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.values import Held
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text import ir
from kernbench.kernel_ir.text.ir import Op

DIALECT = Dialect()

_MAX_BRANCHES = 64


def build_region(run: Evaluator, op: Op) -> CombineRegion:
    """Return the op's region as commands on scalar tiles."""
    region = op.regions[0]
    args = []
    for arg in region.entry.args:
        if arg.type.dtype is None or arg.type.is_pointer:
            raise run.unsupported(op, f"its function takes values of type {arg.type}")
        args.append(run.new_tile((), arg.type.dtype))
    outer, run.commands = run.commands, []
    try:
        results = _Paths(run, op, region).follow(region.entry, args)
        commands = run.commands
    finally:
        run.commands = outer
    if not all(isinstance(command, Math) or _checks_overflow(command) for command in commands):
        raise run.unsupported(op, "its function does more than arithmetic")
    return CombineRegion(tuple(args), _needed(commands, results), results)


_OVERFLOW = re.compile(r"int\d+ overflow detected for operation \w+")


def is_overflow_message(message: str) -> bool:
    """Return whether an assertion is Triton's own on an integer operation (``debug=True``).

    In a combining function it would speak of an order of combining that is ours.
    """
    return _OVERFLOW.fullmatch(message) is not None


def _checks_overflow(command: Command) -> bool:
    return isinstance(command, Assert) and is_overflow_message(command.message)


def _needed(commands: Sequence[Command], results: Sequence[Operand]) -> tuple[Math, ...]:
    """Return the commands that the results depend on, in order."""
    needed = {id(result) for result in results}
    kept: list[Math] = []
    for command in reversed(commands):
        if isinstance(command, Math) and id(command.dst) in needed:
            needed.update(id(tile) for tile in command.inputs)
            kept.append(command)
    return tuple(reversed(kept))


class _Paths:
    """All paths through the blocks of one region."""

    def __init__(self, run: Evaluator, op: Op, region: ir.Region) -> None:
        self.run, self.op = run, op
        self.blocks = {block.label: block for block in region.blocks}
        self.branches = 0

    def follow(self, block: ir.Block, arguments: Sequence[Held]) -> tuple[Operand, ...]:
        """Return what is returned when ``block`` is entered with ``arguments``."""
        run = self.run
        last = run.run_block(block, arguments)
        if not last.successors:
            return tuple(run.as_data(self.op, run.get(v), v.type) for v in last.operands)
        if len(last.successors) == 1:
            return self._go(last.successors[0])
        self.branches += 1
        if self.branches > _MAX_BRANCHES:
            raise run.unsupported(self.op, f"its function branches more than {_MAX_BRANCHES} times")
        condition = run.operand(last, 0)
        if isinstance(condition, Splat):
            return self._go(last.successors[0 if condition.value else 1])
        ways = [self._go(successor) for successor in last.successors]
        return tuple(self._choose(condition, *pair) for pair in zip(*ways, strict=True))

    def _go(self, successor: ir.Successor) -> tuple[Operand, ...]:
        block = self.blocks.get(successor.label)
        if block is None:
            raise self.run.unsupported(self.op, f"there is no block {successor.label}")
        return self.follow(block, [self.run.get(value) for value in successor.operands])

    def _choose(self, condition: Operand, yes: Operand, no: Operand) -> Operand:
        if yes is no:
            return yes
        dtype = self.run.dtype_of(yes)
        inputs = [condition, yes, no]
        return self.run.emit_math(self.op, "arith.select", inputs, MathClass.SIMPLE, dtype, ())


@DIALECT.op("tt.map_elementwise")
def _map_elementwise(run: Evaluator, op: Op) -> None:
    """Apply a function of scalars to every element, or to ``pack`` neighbours at a time."""
    pack = op.attrs.get("pack", 1)
    inputs = [run.operand(op, index) for index in range(len(op.operands))]
    shape = inputs[0].shape
    size = 1
    for length in shape:
        size *= length
    if not isinstance(pack, int) or pack < 1 or size % pack:
        raise run.unsupported(op, f"pack {pack!r} of {size} elements")
    region = build_region(run, op)
    columns = [column for operand in inputs for column in _columns(run, op, operand, pack, size)]
    lanes = shape if pack == 1 else (size // pack,)
    results = _apply(run, op, region, columns, lanes)
    for index, result in enumerate(op.results):
        parts = results[index * pack : (index + 1) * pack]
        if pack == 1:
            run.set(result, parts[0])
            continue
        dtype = run.dtype_of(parts[0])
        joined = run.emit_math(op, "tt.join", parts, MathClass.FREE, dtype, (*lanes, pack))
        run.set(result, run.as_shape(op, joined, shape))


def _columns(run: Evaluator, op: Op, operand: Operand, pack: int, size: int) -> list[Operand]:
    """Return every ``pack``-th element from the first, from the second and so on."""
    if pack == 1:
        return [operand]
    rows = run.as_shape(op, operand, (size // pack, pack))
    dtype, lanes = run.dtype_of(operand), (size // pack,)
    return [
        run.emit_math(op, "tt.split", [rows], MathClass.FREE, dtype, lanes, {"index": index})
        for index in range(pack)
    ]


def _apply(
    run: Evaluator, op: Op, region: CombineRegion, columns: list[Operand], lanes: tuple[int, ...]
) -> list[Operand]:
    """Emit the region's commands on whole tiles."""
    values: dict[Tile, Operand] = dict(zip(region.args, columns, strict=True))

    def fetch(operand: Operand) -> Operand:
        if isinstance(operand, Tile):
            return values.get(operand, operand)
        return replace(operand, shape=lanes) if isinstance(operand, Splat | Param) else operand

    for command in region.commands:
        inputs = [fetch(operand) for operand in command.inputs]
        values[command.dst] = run.emit_math(
            op, command.op, inputs, command.cost, command.dst.dtype, lanes, command.attrs
        )
    return [fetch(result) for result in region.results]
