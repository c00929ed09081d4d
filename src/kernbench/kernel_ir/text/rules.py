"""What a rule about an operation is made of: how many values it takes and makes, of which types.

Each operation's rule stands with its handler, in ``kernel_ir/ops``; :func:`verify` applies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernbench.kernel_ir.text.ir import Op, Region, Type

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
