"""Operations outside ``tt``, ``arith`` and ``math`` that a kernel may hold.

Branches (``cf.br``, ``cf.cond_br``) end blocks and are followed by the evaluator itself.
"""

from __future__ import annotations

from kernbench.commands import Hint, Separable, Splat, constant
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.hints import keep_hints
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import MANY

DIALECT = Dialect()


@DIALECT.op(
    *("cf.assert", "ttg.local_barrier"),
    *("tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"),
    operands=(0, MANY),
    results=0,
)
def _nothing(run: Evaluator, op: Op) -> None:
    """Skip what neither moves nor computes data: programs run their commands in order anyway.

    A launch begins when the one before it on its stream has ended, so whoever waits for that one
    need not.
    """


@DIALECT.op("gpu.barrier", "ttg.barrier", operands=(0, MANY), results=0)
def _barrier(run: Evaluator, op: Op) -> None:
    """Say that the warps of a program wait for each other; here commands run one by one anyway."""
    run.hints.append(Hint("barrier", (), op.line, None))


@DIALECT.op("llvm.intr.assume", operands=(1, MANY), results=0)
def _assume(run: Evaluator, op: Op) -> None:
    """Compute nothing; who checks may hold it against the value."""
    keep_hints(run, [Hint("assume", (), op.line, None)], run.get(op.operands[0]))


@DIALECT.op("ub.poison", operands=0)
def _poison(run: Evaluator, op: Op) -> None:
    """Set an undefined value; zero is as good as any, and repeatable."""
    type_ = op.results[0].type
    if type_.is_bool:
        run.set(op.results[0], constant(False, type_.shape))
    elif type_.is_int:
        run.set(op.results[0], Separable(type_.shape))
    elif type_.is_float and type_.dtype is not None:
        run.set(op.results[0], Splat(0.0, type_.shape, type_.dtype))
    else:
        raise run.unsupported(op, f"its type is {type_}")
