"""Operations that PyTorch composes of others by the device, composed as for a GPU.

Dropout and RMS norms are one operation there, of four and seven on the CPU. So it is with norms
from release 2.9 on, whose ``rms_norm`` calls ``aten::_fused_rms_norm``: earlier ones compose it on
GPUs too, and so do later ones where the weight has another dtype than the input. ``one_hot`` is
zeros, and ones scattered among them: for the CPU it reads the least and the largest index first,
for which a GPU's host would wait; without data it compares with all classes.
Source: ``Onehot.cpp`` of PyTorch's ``aten/src/ATen/native``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.operations import PLAIN
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.of_all import compose, overriding
from kernbench.torch_bridge.processes.registrations import KEYSET

_HALVES = (torch.float16, torch.bfloat16)


def install(patches: Patches) -> None:
    """Replace what they are composed of, and implement the norms' operation."""
    with overriding(patches) as library:
        compose(library, "dropout", _dropout)
        before = torch.library.get_kernel("aten::one_hot", "CPU")
        compose(library, "one_hot", partial(_one_hot, before))
        if not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
            return
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


def _composed(
    input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Return the norm, and what rows were multiplied by."""
    wide = input.float() if input.dtype in _HALVES else input
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    dims = list(range(-len(shape), 0))
    scale = torch.rsqrt(torch.pow(wide, 2).mean(dims, keepdim=True).add_(least))
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


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not train or not p or not input.numel():
        return input
    if p < 1 and device_of(input).type == DEVICE_TYPE:
        return torch.native_dropout(input, p, train)[0]
    if p == 1:
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    # As PyTorch does, so that the numbers are the same.
    return input * torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)


def _one_hot(before: Any, tensor: Tensor, num_classes: int = -1) -> Any:
    # The compiler's tensors are compared with all classes on a GPU, too.
    is_there = type(tensor) in PLAIN and device_of(tensor).type == DEVICE_TYPE
    if not is_there or tensor.dtype != torch.int64 or not tensor.numel():
        return before.call_boxed(KEYSET, tensor, num_classes)
    if num_classes != -1 and num_classes < 1:
        raise RuntimeError("Class values must be smaller than num_classes.")
    if num_classes == -1:
        num_classes = int(tensor.max()) + 1
    result = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=device_of(tensor))
    return result.scatter_(-1, tensor.unsqueeze(-1), 1)
