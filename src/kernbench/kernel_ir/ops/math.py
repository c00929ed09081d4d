"""The ``math`` dialect: floating-point functions, always commands on data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.commands import MathClass
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op

if TYPE_CHECKING:
    from kernbench.kernel_ir.evaluation.evaluator import Evaluator

DIALECT = Dialect()

_SIMPLE = ("absf", "absi", "ceil", "floor", "round", "roundeven", "trunc", "fma", "copysign")
_TRANSCENDENTAL = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "fpowi",
    "log",
    "log10",
    "log1p",
    "log2",
    "powf",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
)
_COST: dict[str, MathClass] = {
    **{f"math.{name}": MathClass.SIMPLE for name in _SIMPLE},
    **{f"math.{name}": MathClass.TRANSCENDENTAL for name in _TRANSCENDENTAL},
}


def _elementwise(run: Evaluator, op: Op) -> None:
    inputs = [run.operand(op, index) for index in range(len(op.operands))]
    run.math(op, inputs, _COST[op.name])


for _name in _COST:
    DIALECT.add(_name, _elementwise)
