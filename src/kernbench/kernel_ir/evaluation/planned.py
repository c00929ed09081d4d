"""Which integers phase 1 has to know: those that may reach an address, a mask or control flow.

Others are data in all but name, such as the rounds of a random number generator. To spell them out
for all programs of a grid would take as long as to compute them, and again for every seed.
"""

from __future__ import annotations

import functools

from kernbench.kernel_ir.text.ir import Function, Module, Op, Value

MIXING = frozenset(
    {
        "arith.muli",
        "arith.andi",
        "arith.ori",
        "arith.xori",
        "arith.shli",
        "arith.shrsi",
        "arith.shrui",
        "tt.mulhiui",
    }
)
"""What hashes are made of. Of tiles that differ between programs these are commands on data where
nothing that phase 1 plans depends on them."""

_PASSED_ON = MIXING | {
    "arith.addi",
    "arith.subi",
    "arith.extsi",
    "arith.extui",
    "arith.trunci",
    "arith.cmpi",
    "arith.select",
    "tt.bitcast",
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.reshape",
}
_TO_FLOAT = frozenset({"arith.sitofp", "arith.uitofp"})


# A memo, not state: modules do not change.
@functools.lru_cache(maxsize=256)
def planned_values(module: Module) -> frozenset[Value]:
    """Return the values that may reach an address, a mask, a loop or a branch."""
    planned: set[Value] = set()
    for function in module.functions.values():
        _add(function, planned)
    return frozenset(planned)


def _add(function: Function, planned: set[Value]) -> None:
    # Uses come after definitions, and what goes round a loop is handed over by a terminator.
    for op in reversed(list(function.body.walk())):
        for successor in op.successors:
            planned.update(successor.operands)
        planned.update(_needed(op, planned))


def _needed(op: Op, planned: set[Value]) -> tuple[Value, ...]:
    """Return the operands that phase 1 has to know for this operation."""
    if op.name in _TO_FLOAT:
        return ()
    if op.name == "tt.store":
        return (op.operands[0], *op.operands[2:])
    if op.name in _PASSED_ON and planned.isdisjoint(op.results):
        return ()
    return op.operands
