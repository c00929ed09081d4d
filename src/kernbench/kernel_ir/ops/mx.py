"""``tt.dot_scaled``: a product of operands in a block-scaled ("mx") format.

It becomes a decode of each scaled operand to bfloat16 (float16 when the other operand is), which is
exact but for what does not fit there, and a ``Gemm``. That is what Triton does on machines without
an engine for the format.
"""

from __future__ import annotations

from kernbench.commands import Gemm, MathClass, Operand
from kernbench.dtypes import DType, bfloat16, float16
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op

DIALECT = Dialect()
DIALECT.emits("tt.mx_decode", cost=MathClass.CONVERT)

_ELEMENTS = ("e2m1", "e4m3", "e5m2", "fp16", "bf16")


@DIALECT.op("tt.dot_scaled")
def _dot_scaled(run: Evaluator, op: Op) -> None:
    # The assembly is `%a scale %sa, %b scale %sb, %c`, with either scale left out.
    scaled = op.attrs.get("scales", ())
    operands = [run.operand(op, index) for index in range(len(op.operands))]
    if len(operands) != 3 + len(scaled):
        raise run.unsupported(op, f"{len(operands)} operands with {len(scaled)} scales")
    scales: list[Operand | None] = []
    factors: list[Operand] = []
    place = 0
    while len(factors) < 2:
        factors.append(operands[place])
        place += 1
        has_scale = place in scaled
        scales.append(operands[place] if has_scale else None)
        place += has_scale
    types = [_element_type(run, op, side) for side in ("lhs", "rhs")]
    dtype = float16 if "fp16" in types else bfloat16
    a, b = (
        _decode(run, op, factor, scale, element, dtype, is_rhs=side == 1)
        for side, (factor, scale, element) in enumerate(zip(factors, scales, types, strict=True))
    )
    dst = run.result_tile(op)
    run.commands.append(Gemm(dst, a, b, operands[place], "ieee", op.line))
    run.set(op.results[0], dst)


def _element_type(run: Evaluator, op: Op, side: str) -> str:
    name = str(op.attrs.get(side, ""))
    if name not in _ELEMENTS:
        raise run.unsupported(op, f"{side} elements of type {name!r}; known: {_ELEMENTS}")
    return name


def _decode(
    run: Evaluator,
    op: Op,
    factor: Operand,
    scale: Operand | None,
    element: str,
    dtype: DType,
    *,
    is_rhs: bool,
) -> Operand:
    if scale is None and run.dtype_of(factor) == dtype:
        return factor
    rank = len(factor.shape)
    inner = rank - 2 if is_rhs else rank - 1
    packs_inner = op.attrs.get("rhs_k_pack" if is_rhs else "lhs_k_pack", True)
    packed = inner if packs_inner else 2 * rank - 3 - inner
    shape = tuple(
        length * 2 if element == "e2m1" and axis == packed else length
        for axis, length in enumerate(factor.shape)
    )
    inputs = [factor] if scale is None else [factor, scale]
    attrs = {
        "elements": element,
        "axis": inner,
        "packed_axis": packed,
        "fast": bool(op.attrs.get("fastMath", False)),
    }
    return run.emit_math(
        op, "tt.mx_decode", inputs, DIALECT.costs["tt.mx_decode"], dtype, shape, attrs
    )
