"""Softmax and layer norm over the last dim. A program holds whole rows."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernbench.errors import UsageError
from kernbench.ops.base.kernel import index_type, kernel, new_result
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.ops.base.rows import as_rows, row_blocks
from kernbench.runtime_api import Tensor


@kernel
def softmax_rows(
    out_ptr, x_ptr, M, N, out_m, out_n, x_m, x_n,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    INDEX: tl.constexpr = tl.int32,
):  # fmt: skip
    """``out[m] = exp(x[m] - max(x[m])) / sum(exp(x[m] - max(x[m])))``."""
    m = (tl.program_id(0).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * x_m + n * x_n, mask=mask, other=float("-inf")).to(COMPUTE)
    powers = tl.exp(x - tl.max(x, axis=1)[:, None])
    result = powers / tl.sum(powers, axis=1)[:, None]
    tl.store(out_ptr + m * out_m + n * out_n, result.to(out_ptr.dtype.element_ty), mask=mask)


@kernel
def layer_norm_rows(
    out_ptr, x_ptr, weight_ptr, bias_ptr, eps, M, N, out_m, out_n, x_m, x_n, weight_n, bias_n,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    INDEX: tl.constexpr = tl.int32,
):  # fmt: skip
    """``out[m] = (x[m] - mean(x[m])) / sqrt(var(x[m]) + eps) * weight + bias``."""
    m = (tl.program_id(0).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * x_m + n * x_n, mask=mask, other=0.0).to(COMPUTE)
    centred = tl.where(n < N, x - tl.sum(x, axis=1)[:, None] / N, 0.0)
    variance = tl.sum(centred * centred, axis=1)[:, None] / N
    result = centred / tl.sqrt(variance + eps)
    if weight_ptr is not None:
        result *= tl.load(weight_ptr + n * weight_n, mask=n < N, other=0.0).to(COMPUTE)
    if bias_ptr is not None:
        result += tl.load(bias_ptr + n * bias_n, mask=n < N, other=0.0).to(COMPUTE)
    tl.store(out_ptr + m * out_m + n * out_n, result.to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return the softmax over the last dim.

    Raises:
        UsageError: ``dim`` is another one; transpose first.
    """
    require_float("softmax", x)
    if dim not in (-1, len(x.shape) - 1):
        raise UsageError(
            f"softmax works on the last dim, but got dim {dim} of shape {tuple(x.shape)}; use "
            "x.transpose(dim, -1) and transpose the result back"
        )
    rows = as_rows("softmax", x)
    out = new_result(tuple(x.shape), x.dtype, x)
    if math.prod(x.shape) == 0:
        return out
    blocks = row_blocks(rows.count, rows.length)
    out.context.launch(
        "softmax", softmax_rows, out, rows.tensor, rows.count, rows.length,
        rows.length, 1, rows.row_stride, rows.stride,
        grid=(triton.cdiv(rows.count, blocks["BLOCK_M"]),), COMPUTE=compute_dtype(x.dtype),
        INDEX=index_type(out, x), **blocks,
    )  # fmt: skip
    return out


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return the layer norm of each row of the last dim, times weight, plus bias.

    Raises:
        UsageError: Weight or bias do not have the size of the last dim.
    """
    require_float("layer_norm", x)
    rows = as_rows("layer_norm", x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != (rows.length,):
            raise UsageError(
                f"the {name} of layer_norm must have shape ({rows.length},), but got "
                f"{tuple(parameter.shape)}"
            )
    out = new_result(tuple(x.shape), x.dtype, x)
    if math.prod(x.shape) == 0:
        return out
    blocks = row_blocks(rows.count, rows.length)
    out.context.launch(
        "layer_norm", layer_norm_rows, out, rows.tensor, weight, bias, float(eps),
        rows.count, rows.length, rows.length, 1, rows.row_stride, rows.stride,
        weight.stride()[0] if weight is not None else 0,
        bias.stride()[0] if bias is not None else 0,
        grid=(triton.cdiv(rows.count, blocks["BLOCK_M"]),), COMPUTE=compute_dtype(x.dtype),
        INDEX=index_type(out, x), **blocks,
    )  # fmt: skip
    return out
