"""Optimizer steps, in place on parameters and their state."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernbench.errors import UsageError
from kernbench.ops.base.kernel import kernel
from kernbench.ops.base.promotion import require_float
from kernbench.runtime_api import Tensor


@kernel
def adamw_step(
    param_ptr, grad_ptr, m_ptr, v_ptr, lr, beta1, beta2, eps, decay, correction1, correction2, n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of AdamW on consecutive elements, computed in float32.

    ``decay`` is ``1 - lr * weight_decay``; the corrections are ``1 - beta ** step``.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    grad = tl.load(grad_ptr + at, mask=mask).to(tl.float32)
    param = tl.load(param_ptr + at, mask=mask).to(tl.float32)
    m = tl.load(m_ptr + at, mask=mask).to(tl.float32) * beta1 + grad * (1 - beta1)
    v = tl.load(v_ptr + at, mask=mask).to(tl.float32) * beta2 + grad * grad * (1 - beta2)
    update = (m / correction1) / (tl.sqrt(v / correction2) + eps)
    param = param * decay - lr * update
    tl.store(m_ptr + at, m.to(m_ptr.dtype.element_ty), mask=mask)
    tl.store(v_ptr + at, v.to(v_ptr.dtype.element_ty), mask=mask)
    tl.store(param_ptr + at, param.to(param_ptr.dtype.element_ty), mask=mask)


def adamw_(
    param: Tensor,
    grad: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> None:
    """Do one step of AdamW: changes ``param`` and its moments ``m`` and ``v``.

    ``step`` counts from 1, as the bias correction needs it.

    Raises:
        UsageError: Shapes differ, a tensor is not contiguous, or a number is out of range.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """
    for name, tensor in (("param", param), ("grad", grad), ("m", m), ("v", v)):
        require_float(f"adamw_ ({name})", tensor)
        if tuple(tensor.shape) != tuple(param.shape):
            raise UsageError(
                f"adamw_: {name} has shape {tuple(tensor.shape)}, but param {tuple(param.shape)}"
            )
        if not tensor.is_contiguous():
            raise UsageError(f"adamw_ changes tensors in place: {name} must be contiguous")
    if step < 1:
        raise UsageError(f"adamw_: step must be at least 1, but got {step}")
    beta1, beta2 = betas
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise UsageError(f"adamw_: betas must be in [0, 1), but got {betas}")
    count = math.prod(param.shape)
    if count == 0:
        return
    param.context.launch(
        "adamw", adamw_step, param, grad, m, v, float(lr), float(beta1), float(beta2), float(eps),
        1.0 - lr * weight_decay, 1.0 - beta1**step, 1.0 - beta2**step, count,
        grid=(triton.cdiv(count, 1024),), BLOCK=1024,
    )  # fmt: skip
