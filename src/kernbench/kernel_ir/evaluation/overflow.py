"""32-bit integer arithmetic that leaves its range on the way to an address.

Two's complement wraps silently, and so do the values of the evaluator. Only for an address is
that certainly a mistake: hashes and random numbers wrap on purpose, and remainders and bit masks
bring a number back into range.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from kernbench.commands import AddressOverflow, Separable, SourceLine
from kernbench.kernel_ir.evaluation import integers
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.text.ir import Function, Module, Op, Region, Value

_BITS = 32
_HALF = 1 << (_BITS - 1)
_ARITHMETIC = ("arith.addi", "arith.subi", "arith.muli")
CARRIES_ON = frozenset(
    (
        *(*_ARITHMETIC, "arith.extsi", "tt.splat"),
        *("tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans"),
    )
)
"""Operations that propagate an overflow. Others (a remainder, a bit mask) bring it into range."""


def note_overflow(run: Evaluator, op: Op, a: Separable, b: Separable) -> None:
    """Remember the op if its exact result does not fit for some program or element."""
    if op.name not in _ARITHMETIC or op.results[0].type.bits != _BITS:
        return
    (a_low, a_high), (b_low, b_high) = a.bounds(), b.bounds()
    if op.name == "arith.muli":
        corners = [x * y for x in (a_low, a_high) for y in (b_low, b_high)]
        low, high = min(corners), max(corners)
    elif op.name == "arith.addi":
        low, high = a_low + b_low, a_high + b_high
    else:
        low, high = a_low - b_high, a_high - b_low
    if low >= -_HALF and high < _HALF:
        return
    exact = integers.binary(op.name, a, b, 64)
    if len(exact.dims) == sum(map(len, exact.terms)):
        # Each dim is in one term, so the extremes of the terms meet somewhere.
        low, high = exact.bounds()
    else:
        dense = exact.dense(exact.dims)
        low, high = int(dense.min()), int(dense.max())
    if low < -_HALF or high >= _HALF:
        run.overflowed[op] = low if low < -_HALF else high


def note_address(run: Evaluator, op: Op, offset: Value) -> None:
    """Record the overflows that reach ``offset``, an operand of the address ``op``."""
    if not run.overflowed:
        return
    ops, carried = _definitions(run.module.kernel)
    for _, maker in _made_of([offset], ops, carried, CARRIES_ON):
        if maker in run.overflowed:
            overflow = AddressOverflow(maker.name, maker.line, run.overflowed[maker], op.line)
            run.overflows.setdefault((maker, op), overflow)


def address_arithmetic(module: Module) -> frozenset[tuple[str, SourceLine]]:
    """Return name and line of the 32-bit arithmetic whose result may become part of an address."""
    arithmetic: set[tuple[str, SourceLine]] = set()
    for function in module.functions.values():
        ops, carried = _definitions(function)
        offsets = [
            op.operands[1]
            for op in function.body.walk()
            if op.name == "tt.addptr" and len(op.operands) > 1
        ]
        through = {*CARRIES_ON, "arith.select", "arith.shli"}
        for value, maker in _made_of(offsets, ops, carried, through):
            is_arithmetic = maker.name in {*_ARITHMETIC, "arith.shli"}
            if is_arithmetic and value.type.is_int and value.type.bits == _BITS:
                arithmetic.add((maker.name, maker.line))
    return frozenset(arithmetic)


def _made_of(
    values: list[Value],
    ops: Mapping[Value, Op],
    carried: Mapping[Value, Sequence[Value]],
    through: Container[str],
) -> Iterator[tuple[Value, Op]]:
    """Yield what values are made of by operations of some names, and the operation of each."""
    pending, seen = values, set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        pending += carried.get(value, ())
        maker = ops.get(value)
        if maker is not None and maker.name in through:
            yield value, maker
            pending += maker.operands


def _definitions(kernel: Function) -> tuple[dict[Value, Op], dict[Value, list[Value]]]:
    """Return which op makes each value, and which values a loop puts into each it carries."""
    ops: dict[Value, Op] = {}
    carried: dict[Value, list[Value]] = {}

    def visit(region: Region) -> None:
        for block in region.blocks:
            for op in block.ops:
                ops.update(dict.fromkeys(op.results, op))
                if op.name == "scf.for":
                    inner = op.regions[0].entry
                    last = inner.ops[-1].operands if inner.ops else ()
                    for arg, result, init, yielded in zip(
                        inner.args[1:], op.results, op.operands[3:], last, strict=False
                    ):
                        carried[arg] = carried[result] = [init, yielded]
                elif op.name == "scf.if":
                    for branch in op.regions:
                        last = branch.entry.ops[-1].operands if branch.blocks else ()
                        for result, yielded in zip(op.results, last, strict=False):
                            carried.setdefault(result, []).append(yielded)
                elif op.name == "scf.while":
                    _carry_while(op, carried)
                for item in op.regions:
                    visit(item)

    visit(kernel.body)
    return ops, carried


def _carry_while(op: Op, carried: dict[Value, list[Value]]) -> None:
    """Record what an ``scf.while`` passes to its condition, its body and its results."""
    before, after = (region.entry for region in op.regions)
    handed = before.ops[-1].operands[1:] if before.ops else ()
    yielded = after.ops[-1].operands if after.ops else ()
    for arg, init, again in zip(before.args, op.operands, yielded, strict=False):
        carried[arg] = [init, again]
    for arg, result, value in zip(after.args, op.results, handed, strict=False):
        carried[arg] = carried[result] = [value]
