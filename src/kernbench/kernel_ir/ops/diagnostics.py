"""Messages to the programmer: ``tl.device_print`` and ``tl.device_assert``."""

from __future__ import annotations

import re

from kernbench.commands import Access, Assert, Predicate, Print, Printed
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.values import Pointer
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import MANY

DIALECT = Dialect()


_ESCAPE = re.compile(rb"\\(\\|[0-9A-Fa-f]{2})")


def message_of(op: Op) -> str:
    """Return the quoted text that the operation carries, without MLIR's escapes."""
    literals = op.attrs.get("literals") or ("",)
    raw = str(literals[0]).encode()
    text = _ESCAPE.sub(lambda m: m[1] if m[1] == b"\\" else bytes.fromhex(m[1].decode()), raw)
    return text.decode(errors="replace")


@DIALECT.op("tt.print", operands=(0, MANY), results=0)
def _print(run: Evaluator, op: Op) -> None:
    signed = op.attrs.get("isSigned") or ()
    values: list[Printed] = []
    for index, operand in enumerate(op.operands):
        held = run.get(operand)
        if isinstance(held, Pointer):
            if operand.type.dtype is None:
                raise run.unsupported(op, f"a pointer of type {operand.type}")
            values.append(Access(held.param, held.offset, operand.type.dtype, held.gather))
        else:
            values.append(run.operand(op, index))
    if len(signed) != len(values):
        raise run.unsupported(op, f"{len(values)} values, but isSigned has {len(signed)}")
    is_signed = tuple(bool(item) for item in signed)
    run.commands.append(
        Print(message_of(op), tuple(values), is_signed, bool(op.attrs.get("hex")), op.line)
    )


@DIALECT.op("tt.assert", operands=(0, MANY), results=0)
def _assert(run: Evaluator, op: Op) -> None:
    held = run.get(op.operands[0])
    if isinstance(held, Predicate) and held.is_uniform and held.is_true:
        return
    run.commands.append(Assert(run.operand(op, 0), message_of(op), op.line))
