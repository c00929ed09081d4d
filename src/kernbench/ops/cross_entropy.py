"""The pieces of a cross entropy over a vocabulary that is split over ranks.

Between the pieces a rank all-reduces: the maxima, the sums and the targets' logits. Rows are
the last dim; every result but the gradient has one float32 per row.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from kernbench.dtypes import float32
from kernbench.errors import UsageError
from kernbench.ops.base.kernel import kernel, new_result
from kernbench.ops.base.layout import as_rows, block
from kernbench.ops.base.promotion import require_float
from kernbench.ops.elementwise import cast
from kernbench.ops.torch_names.extremes import amax
from kernbench.runtime_api import Tensor


@kernel
def exp_sum_rows(
    out_ptr, x_ptr, max_ptr, M, N, x_m, x_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """``out[m] = sum over n of exp(x[m, n] - max[m])``."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    largest = tl.load(max_ptr + m, mask=m < M, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, N, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        mask = (m < M)[:, None] & (n < N)[None, :]
        x = tl.load(x_ptr + m[:, None] * x_m + n[None, :] * x_n, mask=mask, other=float("-inf"))
        acc += tl.exp(x.to(tl.float32) - largest[:, None])
    tl.store(out_ptr + m, tl.sum(acc, axis=1), mask=m < M)


@kernel
def target_logits(out_ptr, x_ptr, target_ptr, start, M, N, x_m, x_n, BLOCK_M: tl.constexpr):
    """``out[m] = x[m, target[m] - start]``, or 0 where that column is another rank's."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.load(target_ptr + m, mask=m < M, other=-1).to(tl.int64) - start
    here = (column >= 0) & (column < N) & (m < M)
    value = tl.load(x_ptr + m * x_m + column * x_n, mask=here, other=0.0)
    tl.store(out_ptr + m, value.to(tl.float32), mask=m < M)


@kernel
def cross_entropy_gradient(
    out_ptr, x_ptr, max_ptr, sum_ptr, grad_ptr, target_ptr, start, M, N, x_m, x_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[m, n] = (exp(x[m, n] - max[m]) / sum[m] - (n == target[m] - start)) * grad[m]``."""
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = m < M
    mask = rows[:, None] & (n < N)[None, :]
    largest = tl.load(max_ptr + m, mask=rows, other=0.0)
    total = tl.load(sum_ptr + m, mask=rows, other=1.0)
    grad = tl.load(grad_ptr + m, mask=rows, other=0.0).to(tl.float32)
    column = tl.load(target_ptr + m, mask=rows, other=-1).to(tl.int64) - start
    x = tl.load(x_ptr + m[:, None] * x_m + n[None, :] * x_n, mask=mask, other=float("-inf"))
    softmax = tl.exp(x.to(tl.float32) - largest[:, None]) / total[:, None]
    result = (softmax - (column[:, None] == n[None, :]).to(tl.float32)) * grad[:, None]
    at = m[:, None] * N + n[None, :]
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=mask)


def row_max(logits: Tensor) -> Tensor:
    """Return the largest logit of each row."""
    require_float("row_max", logits)
    result = amax(logits, -1)
    return result if result.dtype == float32 else cast(result, float32)


def exp_sum(logits: Tensor, row_max: Tensor) -> Tensor:
    """Return ``sum(exp(logits - row_max))`` of each row.

    Raises:
        UsageError: ``row_max`` is not one float32 per row.
    """
    require_float("exp_sum", logits)
    _require_per_row("row_max", row_max, logits)
    rows = as_rows("exp_sum", logits)
    out = new_result(tuple(logits.shape[:-1]), float32, logits)
    if rows.count == 0:
        return out
    block_n = block(rows.length, 16, 1024)
    block_m = block(rows.count, 1, 4096 // block_n)
    out.context.launch(
        "exp_sum", exp_sum_rows, out, rows.tensor, row_max.contiguous(), rows.count, rows.length,
        rows.row_stride, rows.stride,
        grid=(triton.cdiv(rows.count, block_m),), BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out


def gather_target(logits: Tensor, target: Tensor, start: int = 0) -> Tensor:
    """Return each row's logit of its target, or 0 where the target is another rank's.

    ``start`` is the vocabulary index of the first column of ``logits``.

    Raises:
        UsageError: ``target`` is not one integer per row.
    """
    require_float("gather_target", logits)
    _require_targets(target, logits)
    rows = as_rows("gather_target", logits)
    out = new_result(tuple(logits.shape[:-1]), float32, logits)
    if rows.count == 0:
        return out
    block_m = block(rows.count, 1, 256)
    out.context.launch(
        "gather_target", target_logits, out, rows.tensor, target.contiguous(), start,
        rows.count, rows.length, rows.row_stride, rows.stride,
        grid=(triton.cdiv(rows.count, block_m),), BLOCK_M=block_m,
    )  # fmt: skip
    return out


def cross_entropy_backward(
    logits: Tensor, row_max: Tensor, exp_sum: Tensor, grad: Tensor, target: Tensor, start: int = 0
) -> Tensor:
    """Return ``(softmax(logits) - one_hot(target - start)) * grad``, in the dtype of ``logits``.

    ``row_max`` and ``exp_sum`` are those of the whole vocabulary; ``grad`` is one value per row.

    Raises:
        UsageError: One of them is not one value per row.
    """
    require_float("cross_entropy_backward", logits)
    for name, values in (("row_max", row_max), ("exp_sum", exp_sum)):
        _require_per_row(name, values, logits)
    if tuple(grad.shape) != tuple(logits.shape[:-1]):
        raise _not_per_row("grad", grad, logits)
    _require_targets(target, logits)
    rows = as_rows("cross_entropy_backward", logits)
    out = new_result(tuple(logits.shape), logits.dtype, logits)
    if math.prod(out.shape) == 0:
        return out
    block_n = block(rows.length, 16, 1024)
    block_m = block(rows.count, 1, 4096 // block_n)
    per_row = (values.contiguous() for values in (row_max, exp_sum, grad, target))
    out.context.launch(
        "cross_entropy_backward", cross_entropy_gradient, out, rows.tensor, *per_row, start,
        rows.count, rows.length, rows.row_stride, rows.stride,
        grid=(triton.cdiv(rows.length, block_n), triton.cdiv(rows.count, block_m)),
        BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out


def _require_per_row(name: str, values: Tensor, logits: Tensor) -> None:
    if tuple(values.shape) != tuple(logits.shape[:-1]) or values.dtype != float32:
        raise _not_per_row(name, values, logits)


def _require_targets(target: Tensor, logits: Tensor) -> None:
    if tuple(target.shape) != tuple(logits.shape[:-1]) or target.dtype.is_floating_point:
        raise _not_per_row("target", target, logits)


def _not_per_row(name: str, values: Any, logits: Tensor) -> UsageError:
    return UsageError(
        f"{name} must be one value per row of logits, shape {tuple(logits.shape[:-1])}, but got "
        f"shape {tuple(values.shape)} of {values.dtype}"
    )
