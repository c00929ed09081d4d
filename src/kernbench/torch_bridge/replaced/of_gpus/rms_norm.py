"""RMS norms as one operation, as on a GPU; PyTorch composes them of seven for the CPU.

So it is from release 2.9 on, whose ``rms_norm`` calls ``aten::_fused_rms_norm``. Earlier ones
compose it on GPUs too, and so do later ones where the weight has another dtype than the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.of_all import compose, overriding

_HALVES = (torch.float16, torch.bfloat16)


def install(patches: Patches) -> None:
    """Let norms on devices call the operation, and implement it."""
    if not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        return
    with overriding(patches) as library:
        compose(library, "rms_norm", _rms_norm)
        for key in ("CPU", "Meta"):
            # Not Library.impl, which wants composites to decompose for tensors without data.
            library.m.impl("_fused_rms_norm", key, _forward, False)
            library.m.impl("_fused_rms_norm_backward", key, _backward, False)


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    shape = list(normalized_shape)
    _check(input, shape, weight)
    is_there = device_of(input).type == DEVICE_TYPE
    if is_there and (weight is None or weight.dtype == input.dtype):
        rms_norm: Tensor = torch.ops.aten._fused_rms_norm(input, shape, weight, eps)[0]
        return rms_norm
    # As PyTorch does, so that the numbers are the same.
    result, _ = _composed(input, shape, weight, eps)
    return result


def _check(input: Tensor, shape: list[int], weight: Tensor | None) -> None:
    """Refuse what PyTorch refuses, in its words."""
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least "
            f"one element, but got normalized_shape = {shape}"
        )
    if weight is not None and list(weight.shape) != shape:
        raise RuntimeError(
            "Expected weight to be of same shape as normalized_shape, but got weight of shape "
            f"{list(weight.shape)} and normalized_shape = {shape}"
        )
    if list(input.shape[-len(shape) :]) != shape:
        expected = ", ".join(map(str, shape))
        raise RuntimeError(
            f"Given normalized_shape={shape}, expected input with shape [*, {expected}], but got "
            f"input of size{list(input.shape)}"
        )


def _dims(shape: Sequence[int]) -> list[int]:
    return [-index for index in range(len(shape), 0, -1)]


def _composed(
    input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Return the norm, and what rows were multiplied by."""
    wide = input.float() if input.dtype in _HALVES else input
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    scale = torch.rsqrt(torch.pow(wide, 2).mean(_dims(shape), keepdim=True).add_(least))
    mul = wide.mul(scale)
    if weight is not None:
        mul = mul.mul(weight)
    return mul.to(input.dtype), scale


def _forward(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """``aten::_fused_rms_norm``."""
    if not input.is_meta:
        return _composed(input, normalized_shape, weight, eps)
    outer = input.shape[: input.dim() - len(normalized_shape)]
    wide = torch.float32 if input.dtype in _HALVES else input.dtype
    return torch.empty_like(input), input.new_empty(
        (*outer, *[1] * len(normalized_shape)), dtype=wide
    )


def _backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Any, Any]:
    """``aten::_fused_rms_norm_backward``: gradients of the input and of the weight."""
    of_input, of_weight = output_mask[0], output_mask[1] and weight is not None
    if input.is_meta:
        tensor = torch.empty_like(input, memory_format=torch.contiguous_format)
        return tensor if of_input else None, torch.empty_like(weight) if of_weight else None
    # What autograd makes of the composition, operation by operation, so that the bits are the same.
    wide, x = grad_out.to(rstd.dtype), input.to(rstd.dtype)
    result: list[Any] = [None, None]
    if of_weight:
        assert weight is not None
        result[1] = (wide * x.mul(rstd)).sum_to_size(weight.shape).to(weight.dtype)
    if of_input:
        scaled = wide if weight is None else wide * weight
        of_scale = (scaled * x).sum_to_size(rstd.shape)
        of_mean = (-0.5 * of_scale * rstd.pow(3)).expand(x.shape).div(math.prod(normalized_shape))
        result[0] = (scaled * rstd + of_mean * (2 * x)).to(input.dtype)
    return result[0], result[1]
