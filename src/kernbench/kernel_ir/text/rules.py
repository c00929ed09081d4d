"""What a rule about an operation is made of: how many values it takes and makes, of which types.

Each operation's rule stands with its handler, in ``kernel_ir/ops``; :func:`verify` applies it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernbench.errors import KernelParseError
from kernbench.kernel_ir.text.ir import Function, Op, Region, Type

Check = Callable[[Op], str | None]
"""Returns what is wrong with an operation, or None."""

MANY = 1 << 12
"""As many operands as an operation may have at most."""
_HAND_OVER = ("scf.yield", "tt.reduce.return", "tt.scan.return")


@dataclass(frozen=True, slots=True)
class Rule:
    """``operands`` are the fewest and the most; ``results`` is None where the check counts."""

    operands: tuple[int, int]
    results: int | None
    check: Check | None = None


def alike(a: Type, b: Type) -> bool:
    """Return whether two types are the same but for how they were written."""
    return (a.shape, a.dtype, a.is_pointer, a.is_descriptor, a.is_shared) == (
        b.shape,
        b.dtype,
        b.is_pointer,
        b.is_descriptor,
        b.is_shared,
    )


def are_alike(a: list[Type], b: list[Type]) -> bool:
    """Return whether two lists of types are the same, one by one."""
    return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))


def is_integer(type_: Type) -> bool:
    """Return whether a type is of integers, i1 among them."""
    return type_.is_int or type_.is_bool


def is_float(type_: Type) -> bool:
    """Return whether a type is of floating-point numbers."""
    return type_.is_float


def elementwise(accepts: Callable[[Type], bool]) -> Check:
    """Return the check that operands and result are of one type, which ``accepts`` takes."""

    def check(op: Op) -> str | None:
        result = op.results[0].type
        for value in op.operands:
            if not alike(value.type, result) or not accepts(value.type):
                return f"takes {value.type} for {result}"
        return None

    return check


def comparison(accepts: Callable[[Type], bool]) -> Check:
    """Return the check that two values, of a type that ``accepts`` takes, are compared."""

    def check(op: Op) -> str | None:
        a, b = (value.type for value in op.operands)
        result = op.results[0].type
        if not alike(a, b) or not accepts(a) or a.shape != result.shape or not result.is_bool:
            return f"compares {a} with {b} for {result}"
        return None

    return check


def conversion(source: Callable[[Type], bool], target: Callable[[Type], bool]) -> Check:
    """Return the check that a value becomes one of the same shape and another element type."""

    def check(op: Op) -> str | None:
        value, result = op.operands[0].type, op.results[0].type
        if value.shape != result.shape or not source(value) or not target(result):
            return f"converts {value} to {result}"
        return None

    return check


def yields(region: Region, types: list[Type]) -> str | None:
    """Check what the region's last operation yields."""
    last = region.blocks[-1].ops[-1:] if region.blocks else ()
    # A body that yields nothing prints no terminator.
    values = last[0].operands if last and last[0].name in _HAND_OVER else ()
    if len(values) != len(types):
        return f"must yield {len(types)} values, but its region yields {len(values)}"
    for value, type_ in zip(values, types, strict=True):
        if not alike(value.type, type_):
            return f"yields {value.type} for {type_}"
    return None


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
