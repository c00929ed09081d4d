"""Softmax and layer norm over the last dim. A program holds whole rows."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernbench.dtypes import float32
from kernbench.errors import UsageError
from kernbench.ops.base.kernel import index_type, kernel, new_result
from kernbench.ops.base.layout import as_rows, row_blocks
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.ops.reductions import sum as sum_dim
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


_MOST_PARTS = 256
"""How many programs sum the gradients of the parameters, each over its rows."""


@kernel
def norm_backward_rows(
    gx_ptr, gweight_ptr, gshift_ptr, grad_ptr, x_ptr, weight_ptr, added_ptr, eps, M, N, rounds,
    CENTRED: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient of rows; each program processes ``rounds`` tiles and sums the parameters'."""
    n = tl.arange(0, BLOCK_N)
    weight = tl.full((BLOCK_N,), 1.0, dtype=COMPUTE)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + n, mask=n < N, other=0.0).to(COMPUTE)
    gweight = tl.zeros((BLOCK_N,), dtype=COMPUTE)
    gshift = tl.zeros((BLOCK_N,), dtype=COMPUTE)
    for step in range(rounds):
        m = (tl.program_id(0) * rounds + step) * BLOCK_M + tl.arange(0, BLOCK_M)
        mask = (m < M)[:, None] & (n < N)[None, :]
        at = m[:, None] * N + n[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(COMPUTE)
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(COMPUTE)
        if CENTRED:
            x = tl.where((n < N)[None, :], x - tl.sum(x, axis=1)[:, None] / N, 0.0)
        inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / N + eps)
        normal = x * inverse[:, None]
        gweight += tl.sum(grad * normal, axis=0)
        gshift += tl.sum(grad, axis=0)
        grad *= weight[None, :]
        result = grad - normal * (tl.sum(grad * normal, axis=1) / N)[:, None]
        if CENTRED:
            result -= (tl.sum(grad, axis=1) / N)[:, None]
        result *= inverse[:, None]
        if added_ptr is not None:
            result += tl.load(added_ptr + at, mask=mask, other=0.0).to(COMPUTE)
        tl.store(gx_ptr + at, result.to(gx_ptr.dtype.element_ty), mask=mask)
    row = tl.program_id(0) * N + n
    if gweight_ptr is not None:
        tl.store(gweight_ptr + row, gweight, mask=n < N)
    if gshift_ptr is not None:
        tl.store(gshift_ptr + row, gshift, mask=n < N)


def norm_backward(
    grad_TF: Tensor,
    x_TF: Tensor,
    weight_F: Tensor | None = None,
    *,
    residual_TF: Tensor | None = None,
    eps: float = 1e-5,
    centred: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of a norm's input, weight and shift.

    ``residual_TF`` is added to the first: what comes past the norm. Without ``centred`` it is the
    RMS norm, which has no shift. Those of the parameters are summed in float32.

    Raises:
        UsageError: Shapes do not fit; names them.
    """
    require_float("norm_backward", x_TF)
    for name, tensor in (("the gradient", grad_TF), ("the residual", residual_TF)):
        if tensor is not None and tuple(tensor.shape) != tuple(x_TF.shape):
            raise UsageError(
                f"norm_backward: {name} has shape {tuple(tensor.shape)}, the input "
                f"{tuple(x_TF.shape)}"
            )
    length = x_TF.shape[-1] if x_TF.shape else 0
    if weight_F is not None and tuple(weight_F.shape) != (length,):
        raise UsageError(
            f"norm_backward: the weight must have shape ({length},), but got "
            f"{tuple(weight_F.shape)}"
        )
    count = math.prod(x_TF.shape[:-1])
    out = new_result(tuple(x_TF.shape), x_TF.dtype, x_TF)
    run = x_TF.context
    if count * length == 0:
        zeros = [run.zeros((length,), dtype=x_TF.dtype) for _ in range(2)]
        return out, zeros[0], zeros[1] if centred else None
    blocks = row_blocks(count, length)
    tiles = triton.cdiv(count, blocks["BLOCK_M"])
    rounds = triton.cdiv(tiles, _MOST_PARTS)
    parts = triton.cdiv(tiles, rounds)
    weights = run.empty((parts, length), dtype=float32)
    shifts = run.empty((parts, length), dtype=float32) if centred else None
    added = None if residual_TF is None else residual_TF.contiguous()
    run.launch(
        "norm_backward", norm_backward_rows, out, weights, shifts,
        grad_TF.contiguous(), x_TF.contiguous(),
        None if weight_F is None else weight_F.contiguous(), added,
        float(eps), count, length, rounds,
        grid=(parts,), CENTRED=centred, COMPUTE=compute_dtype(x_TF.dtype), **blocks,
    )  # fmt: skip
    gweight = sum_dim(weights, dim=0).to(x_TF.dtype)
    return out, gweight, None if shifts is None else sum_dim(shifts, dim=0).to(x_TF.dtype)
