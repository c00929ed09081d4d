"""``tt.gather`` and ``tt.histogram``: elements chosen, and counted, by what they hold."""

from __future__ import annotations

from kernbench.commands import MathClass
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op

DIALECT = Dialect()


@DIALECT.op("tt.gather", cost=MathClass.SIMPLE)
def _gather(run: Evaluator, op: Op) -> None:
    axis, shape = op.attrs.get("axis"), op.operands[0].type.shape
    if not isinstance(axis, int) or not 0 <= axis < len(shape):
        raise run.unsupported(op, f"axis {axis!r} of a tile of shape {shape}")
    run.math(op, {"axis": axis})


@DIALECT.op("tt.histogram", cost=MathClass.REDUCE)
def _histogram(run: Evaluator, op: Op) -> None:
    run.math(op)
