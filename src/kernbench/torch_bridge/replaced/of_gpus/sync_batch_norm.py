"""The operations of SyncBatchNorm, which PyTorch implements for GPUs only.

Statistics are in float32, or in the input's dtype if that is wider, as on CUDA.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.of_all import library_of_all

_Stats = tuple[Tensor, Tensor]


def install(patches: Patches) -> None:
    """Implement them on the CPU, with shape functions for runs without data."""
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    for name, function in {
        "batch_norm_stats": _stats,
        "batch_norm_gather_stats_with_counts": _gather,
        "batch_norm_elemt": _normalize,
        "batch_norm_backward_reduce": _backward_reduce,
        "batch_norm_backward_elemt": _backward,
    }.items():
        for key in ("CPU", "Meta"):
            library.impl(name, function, key, allow_override=True)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _dims(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1 for _ in range(like.dim() - 2)))


def _centred(input: Tensor, mean: Tensor) -> Tensor:
    return _wide(input) - _per_channel(mean, input)


def _stats(input: Tensor, eps: float) -> _Stats:
    variance, mean = torch.var_mean(_wide(input), _dims(input), correction=0)
    return mean, (variance + eps).rsqrt()


def _gather(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> _Stats:
    """Return mean and inverse deviation over all ranks from each rank's: ``(ranks, channels)``."""
    weights = _wide(counts)[:, None]
    total = weights.sum()
    mean, squares = _wide(mean), _wide(invstd).square().reciprocal() - eps
    joint = (mean * weights).sum(0) / total
    variance = ((squares + (mean - joint).square()) * weights).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(joint.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * (total / (total - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return joint, (variance + eps).rsqrt()


def _normalize(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    centred = _centred(input, mean) * _per_channel(invstd, input)
    if weight is not None:
        centred = centred * _per_channel(weight, input)
    if bias is not None:
        centred = centred + _per_channel(bias, input)
    return centred.to(input.dtype)


def _backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sums of the gradient and of its product with the centred input; weight gradients."""
    dims = _dims(input)
    sum_dy = _wide(grad_out).sum(dims)
    sum_dy_xmu = (_wide(grad_out) * _centred(input, mean)).sum(dims)
    dtype = sum_dy.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(dtype), sum_dy.to(dtype)


def _backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    total = count.sum()
    factor = _per_channel(invstd.square() * sum_dy_xmu / total, input)
    wide = _wide(grad_out) - _per_channel(sum_dy / total, input) - _centred(input, mean) * factor
    scale = invstd if weight is None else invstd * weight
    return (wide * _per_channel(scale, input)).to(input.dtype)
