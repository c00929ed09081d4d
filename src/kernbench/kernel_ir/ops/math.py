"""The ``math`` dialect: floating-point functions, always commands on data."""

from __future__ import annotations

from kernbench.commands import MathClass
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import elementwise, is_float, is_integer

DIALECT = Dialect()

_FLOATS = elementwise(is_float)
_SIMPLE, _TRANSCENDENTAL = MathClass.SIMPLE, MathClass.TRANSCENDENTAL


@DIALECT.op(
    *("math.absf", "math.ceil", "math.floor", "math.round", "math.roundeven", "math.trunc"),
    operands=1,
    check=_FLOATS,
    cost=_SIMPLE,
)
@DIALECT.op("math.absi", operands=1, check=elementwise(is_integer), cost=_SIMPLE)
@DIALECT.op("math.copysign", operands=2, check=_FLOATS, cost=_SIMPLE)
@DIALECT.op("math.fma", operands=3, check=_FLOATS, cost=_SIMPLE)
@DIALECT.op(
    *("math.acos", "math.acosh", "math.asin", "math.asinh", "math.atan", "math.atanh"),
    *("math.cos", "math.cosh", "math.sin", "math.sinh", "math.tan", "math.tanh"),
    *("math.exp", "math.exp2", "math.expm1", "math.log", "math.log10", "math.log1p", "math.log2"),
    *("math.sqrt", "math.rsqrt", "math.cbrt", "math.erf", "math.erfc"),
    operands=1,
    check=_FLOATS,
    cost=_TRANSCENDENTAL,
)
@DIALECT.op("math.atan2", "math.powf", operands=2, check=_FLOATS, cost=_TRANSCENDENTAL)
@DIALECT.op("math.fpowi", operands=2, cost=_TRANSCENDENTAL)
def _elementwise(run: Evaluator, op: Op) -> None:
    run.math(op)
