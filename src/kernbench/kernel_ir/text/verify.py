"""Apply the rules that each operation has: how many values it takes, of which types.

Text that Triton printed is sound. Text that was edited need not be: here it is refused, with
the line of the text, so that the evaluator may rely on what its handlers take for granted.
Operations without a rule are left to their handlers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernbench.errors import KernelParseError
from kernbench.kernel_ir.text.ir import Function, Op
from kernbench.kernel_ir.text.rules import Rule, are_alike

_ENDS = frozenset({"tt.return", "cf.br", "cf.cond_br"})
_MOST_ELEMENTS = 1 << 20
"""Triton's own limit on the elements of a tensor."""


def verify(functions: Mapping[str, Function], rules: Mapping[str, Rule]) -> None:
    """Refuse functions with invalid operations, by the rule of each operation's name.

    Raises:
        KernelParseError: One takes values that it cannot; names the line of the text.
    """
    for function in functions.values():
        ends = [block.ops[-1].name if block.ops else "" for block in function.body.blocks]
        if function.result_types and not _ENDS.issuperset(ends):
            raise KernelParseError(f"function {function.name} has a block that returns nothing")
        for op in function.body.walk():
            if op.name == "tt.call":
                problem = _call(op, functions)
            elif op.name == "tt.return":
                problem = _return(op, function)
            else:
                problem = _problem(op, rules)
            if problem is not None:
                raise KernelParseError(
                    f"line {op.text_line} of the TTIR text: {op.name} in {function.name} {problem}"
                )


def _call(op: Op, functions: Mapping[str, Function]) -> str | None:
    """Check a call of a function of this module; the evaluator resolves its name."""
    for name in (str(word).removeprefix("@").strip('"') for word in op.attrs.get("literals", ())):
        called = functions.get(name)
        if called is not None:
            params = [param.type for param in called.params]
            if not are_alike([value.type for value in op.operands], params):
                return f"hands {len(op.operands)} values to {name}, which takes other parameters"
            if not are_alike([value.type for value in op.results], list(called.result_types)):
                return f"takes {len(op.results)} results from {name}, which returns others"
    return None


def _return(op: Op, function: Function) -> str | None:
    if are_alike([value.type for value in op.operands], list(function.result_types)):
        return None
    return f"returns {len(op.operands)} values, but {function.name} others"


def _problem(op: Op, rules: Mapping[str, Rule]) -> str | None:
    for value in op.results:
        if math.prod(value.type.shape) > _MOST_ELEMENTS:
            return f"makes {value.type}, but a tensor has at most {_MOST_ELEMENTS:,} elements"
    rule = rules.get(op.name)
    if rule is None:
        return None
    fewest, most = rule.operands
    if not fewest <= len(op.operands) <= most:
        expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        return f"must have {expected} operands, but has {len(op.operands)}"
    if rule.results is not None and len(op.results) != rule.results:
        return f"must have {rule.results} results, but has {len(op.results)}"
    return None if rule.check is None else rule.check(op)
