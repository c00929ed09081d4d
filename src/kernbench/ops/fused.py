"""Operations that transformer stacks fuse into one kernel between two matrix products.

Names of dims: T tokens, F features.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernbench.errors import UsageError
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.kernel import kernel, new_result
from kernbench.ops.base.layout import as_rows, block, row_blocks
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.ops.elementwise import run_elementwise
from kernbench.runtime_api import Tensor

_ACTIVATIONS = {"gelu": fn.gelu, "relu": fn.relu, "silu": fn.silu}
_BIASED = {None: fn.add, "gelu": fn.add_gelu, "relu": fn.add_relu, "silu": fn.add_silu}


def bias_activation(
    x: Tensor, bias: Tensor | None, activation: str | None = None, out: Tensor | None = None
) -> Tensor:
    """Return ``activation(x + bias)``; ``activation`` is "gelu" (tanh form), "relu" or "silu".

    Raises:
        UsageError: There is no such activation, or shapes do not broadcast.
    """
    require_float("bias_activation", x)
    if activation not in _BIASED:
        known = ", ".join(map(repr, _BIASED))
        raise UsageError(f"activation must be one of {known}, but got {activation!r}")
    if out is None:
        out = new_result(tuple(x.shape), x.dtype, x)
    if bias is None:
        function = fn.identity if activation is None else _ACTIVATIONS[activation]
        return run_elementwise("bias_activation", function, (x,), out, x.dtype)
    return run_elementwise("bias_activation", _BIASED[activation], (x, bias), out, x.dtype)


def bias_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Return the gradient of ``bias_activation(x, bias, "gelu")`` with respect to x."""
    require_float("bias_gelu_backward", x)
    out = new_result(tuple(x.shape), x.dtype, x)
    name, operands, function = "bias_gelu_backward", (grad, x), fn.gelu_backward
    if bias is None:
        return run_elementwise(name, function, operands, out, x.dtype)
    return run_elementwise(name, fn.add_gelu_backward, (*operands, bias), out, x.dtype)


def bias_residual(x: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Return ``x + bias + residual``."""
    require_float("bias_residual", x)
    out = new_result(tuple(x.shape), x.dtype, x)
    if bias is None:
        return run_elementwise("bias_residual", fn.add, (x, residual), out, x.dtype)
    return run_elementwise("bias_residual", fn.add_3, (x, bias, residual), out, x.dtype)


def gated(x_T2F: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of a tensor whose last dim holds the gate and then the rest.

    Raises:
        UsageError: The last dim is odd.
    """
    require_float("gated", x_T2F)
    size = x_T2F.shape[-1] if x_T2F.shape else 1
    if size % 2:
        raise UsageError(f"gated needs a last dim of even size, but got {tuple(x_T2F.shape)}")
    gate, up = (x_T2F.narrow(-1, start, size // 2) for start in (0, size // 2))
    out = new_result((*x_T2F.shape[:-1], size // 2), x_T2F.dtype, x_T2F)
    return run_elementwise("gated", fn.silu_mul, (gate, up), out, x_T2F.dtype)


@kernel
def gated_backward_tiles(
    out_ptr, grad_ptr, x_ptr, T, F,
    COMPUTE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """The gradients of gate and up, next to each other as they are in ``x[T, 2F]``."""
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = (t < T)[:, None] & (f < F)[None, :]
    at = t[:, None] * (2 * F) + f[None, :]
    grad = tl.load(grad_ptr + t[:, None] * F + f[None, :], mask=mask, other=0.0).to(COMPUTE)
    gate = tl.load(x_ptr + at, mask=mask, other=0.0).to(COMPUTE)
    up = tl.load(x_ptr + F + at, mask=mask, other=0.0).to(COMPUTE)
    share = tl.sigmoid(gate)
    slope = share * (1 + gate * (1 - share))
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + at, (grad * up * slope).to(dtype), mask=mask)
    tl.store(out_ptr + F + at, (grad * gate * share).to(dtype), mask=mask)


def gated_backward(grad_TF: Tensor, x_T2F: Tensor) -> Tensor:
    """Return the gradient of :func:`gated` with respect to its input.

    Raises:
        UsageError: The shapes do not fit.
    """
    require_float("gated_backward", x_T2F)
    shape = tuple(x_T2F.shape)
    if len(shape) < 1 or tuple(grad_TF.shape) != (*shape[:-1], shape[-1] // 2) or shape[-1] % 2:
        raise UsageError(
            f"gated_backward: an input of shape {shape} has no gradient of shape "
            f"{tuple(grad_TF.shape)}"
        )
    out = new_result(shape, x_T2F.dtype, x_T2F)
    tokens, features = math.prod(shape[:-1]), shape[-1] // 2
    if tokens * features:
        blocks = {"BLOCK_T": block(tokens, 1, 16), "BLOCK_F": block(features, 16, 256)}
        grid = (triton.cdiv(features, blocks["BLOCK_F"]), triton.cdiv(tokens, blocks["BLOCK_T"]))
        out.context.launch(
            "gated_backward", gated_backward_tiles, out, grad_TF.contiguous(),
            x_T2F.contiguous(), tokens, features,
            grid=grid, COMPUTE=compute_dtype(out.dtype), **blocks,
        )  # fmt: skip
    return out


@kernel
def residual_norm_rows(
    sum_ptr, out_ptr, x_ptr, bias_ptr, residual_ptr, weight_ptr, shift_ptr, eps, M, N,
    x_m, x_n, residual_m, residual_n,
    COMPUTE: tl.constexpr, CENTRED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``sum = x + bias + residual`` and ``out = norm(sum) * weight + shift``, whole rows."""
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * x_m + n * x_n, mask=mask, other=0.0).to(COMPUTE)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(COMPUTE)
    if residual_ptr is not None:
        at = m * residual_m + n * residual_n
        x += tl.load(residual_ptr + at, mask=mask, other=0.0).to(COMPUTE)
    if sum_ptr is not None:
        tl.store(sum_ptr + m * N + n, x.to(sum_ptr.dtype.element_ty), mask=mask)
    if CENTRED:
        x = tl.where(n < N, x - tl.sum(x, axis=1)[:, None] / N, 0.0)
    result = x / tl.sqrt(tl.sum(x * x, axis=1)[:, None] / N + eps)
    if weight_ptr is not None:
        result *= tl.load(weight_ptr + n, mask=n < N, other=0.0).to(COMPUTE)
    if shift_ptr is not None:
        result += tl.load(shift_ptr + n, mask=n < N, other=0.0).to(COMPUTE)
    tl.store(out_ptr + m * N + n, result.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm(x_TF: Tensor, weight_F: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return the RMS norm of each row of the last dim, times weight.

    Raises:
        UsageError: The weight does not have the size of the last dim.

    Source: Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019.
    """
    return _norm("rms_norm", x_TF, None, None, weight_F, None, eps, centred=False)[1]


def residual_norm(
    x_TF: Tensor,
    residual_TF: Tensor,
    bias_F: Tensor | None = None,
    weight_F: Tensor | None = None,
    shift_F: Tensor | None = None,
    *,
    eps: float = 1e-5,
    centred: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return ``sum = x + bias + residual`` and its layer norm, in one pass over memory.

    Without ``centred`` the norm is the RMS norm.

    Raises:
        UsageError: Shapes do not fit; names them.
    """
    if tuple(residual_TF.shape) != tuple(x_TF.shape):
        raise UsageError(
            f"residual_norm of x {tuple(x_TF.shape)} and a residual {tuple(residual_TF.shape)}: "
            "the shapes must be the same"
        )
    total, out = _norm(
        "residual_norm", x_TF, residual_TF, bias_F, weight_F, shift_F, eps, centred=centred
    )
    assert total is not None
    return total, out


def _norm(
    name: str,
    x: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    shift: Tensor | None,
    eps: float,
    *,
    centred: bool,
) -> tuple[Tensor | None, Tensor]:
    require_float(name, x)
    rows = as_rows(name, x)
    for what, parameter in (("bias", bias), ("weight", weight), ("shift", shift)):
        if parameter is not None and tuple(parameter.shape) != (rows.length,):
            raise UsageError(
                f"the {what} of {name} must have shape ({rows.length},), but got "
                f"{tuple(parameter.shape)}"
            )
    parameters = [None if item is None else item.contiguous() for item in (bias, weight, shift)]
    out = new_result(tuple(x.shape), x.dtype, x)
    total = None if residual is None else new_result(tuple(x.shape), x.dtype, x)
    if math.prod(x.shape) == 0:
        return total, out
    other = None if residual is None else as_rows(name, residual)
    blocks = row_blocks(rows.count, rows.length)
    x.context.launch(
        name, residual_norm_rows, total, out, rows.tensor, parameters[0],
        None if other is None else other.tensor, parameters[1], parameters[2],
        float(eps), rows.count, rows.length, rows.row_stride, rows.stride,
        0 if other is None else other.row_stride, 0 if other is None else other.stride,
        grid=(triton.cdiv(rows.count, blocks["BLOCK_M"]),),
        COMPUTE=compute_dtype(x.dtype), CENTRED=centred, **blocks,
    )  # fmt: skip
    return total, out
