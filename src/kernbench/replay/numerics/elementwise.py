"""Math commands as functions of arrays, by the tables of the dialects.

float16, bfloat16 and float8 are computed in float32 and rounded after each operation, which is
what hardware does for one operation on these types. Integers are two's complement; TTIR's are
signless, so unsigned operations reinterpret the bits as unsigned.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.commands import Math
from kernbench.errors import InternalError, UnsupportedOpError, nearest
from kernbench.replay.numerics.ops import arith, lookup, math, mx, shapes, tt
from kernbench.replay.numerics.ops.registry import Function, Into, Numeric

TABLES = {
    module.__name__.rpartition(".")[2]: module.TABLE
    for module in (arith, math, tt, shapes, lookup, mx)
}
"""The operations of each module of ``numerics/ops``, by its name."""


def _joined() -> dict[str, Numeric]:
    numerics: dict[str, Numeric] = {}
    for table in TABLES.values():
        twice = numerics.keys() & table.keys()
        if twice:
            raise InternalError(f"{sorted(twice)} are in two tables")
        numerics.update(table)
    return numerics


NUMERICS = _joined()

SHAPE_OPS: dict[str, Callable[[Math], Function]] = {
    name: numeric.build for name, numeric in NUMERICS.items() if numeric.moves
}
"""Builders of operations that only move elements."""

VIEW_OPS = frozenset(name for name, numeric in NUMERICS.items() if numeric.may_share)
"""Operations whose result may share its input's memory."""


def build_function(command: Math) -> Function:
    """Return the function from the inputs' arrays ``[programs, *tile]`` to the result's.

    Raises:
        UnsupportedOpError: The operation is not known; names the nearest known ones.
    """
    numeric = NUMERICS.get(command.op)
    if numeric is None:
        raise UnsupportedOpError(
            f"{command.op} at {command.line} cannot run yet; {nearest(command.op, NUMERICS)}"
        )
    return numeric.build(command)


def build_into(command: Math) -> Into | None:
    """Return the function that writes the result into ``out``, or None if it needs a temporary.

    It takes the inputs' arrays and the keyword ``out``, which may share memory with them.
    """
    numeric = NUMERICS.get(command.op)
    return None if numeric is None else numeric.build_into(command)
