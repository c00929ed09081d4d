"""32-bit integer arithmetic that leaves its range on the way to an address.

Two's complement wraps silently, and so do the values of the evaluator. Only for an address is
that certainly a mistake: hashes and random numbers wrap on purpose, and remainders and bit masks
bring a number back into range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.commands import AddressOverflow, Separable
from kernbench.kernel_ir import integers
from kernbench.kernel_ir.ir import Function, Op, Region, Value

if TYPE_CHECKING:
    from kernbench.kernel_ir.evaluate import Evaluator

_BITS = 32
_HALF = 1 << (_BITS - 1)
_ARITHMETIC = ("arith.addi", "arith.subi", "arith.muli")
_CARRIES_ON = frozenset(
    {
        *_ARITHMETIC,
        "arith.extsi",
        "tt.splat",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.reshape",
        "tt.trans",
    }
)


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
    """Put the overflows that reach ``offset``, an operand of the address ``op``, on record."""
    if not run.overflowed:
        return
    made, carried = _definitions(run.module.kernel)
    pending, seen = [offset], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        pending += carried.get(value, ())
        maker = made.get(value)
        if maker is None or maker.name not in _CARRIES_ON:
            continue
        if maker in run.overflowed:
            found = AddressOverflow(maker.name, maker.line, run.overflowed[maker], op.line)
            run.overflows.setdefault((maker, op), found)
        pending += maker.operands


def _definitions(kernel: Function) -> tuple[dict[Value, Op], dict[Value, list[Value]]]:
    """Return which op makes each value, and which values a loop puts into each it carries."""
    made: dict[Value, Op] = {}
    carried: dict[Value, list[Value]] = {}

    def visit(region: Region) -> None:
        for block in region.blocks:
            for op in block.ops:
                made.update(dict.fromkeys(op.results, op))
                if op.name == "scf.for":
                    inner = op.regions[0].entry
                    last = inner.ops[-1].operands if inner.ops else ()
                    for arg, result, init, yielded in zip(
                        inner.args[1:], op.results, op.operands[3:], last, strict=False
                    ):
                        carried[arg] = carried[result] = [init, yielded]
                for each in op.regions:
                    visit(each)

    visit(kernel.body)
    return made, carried
