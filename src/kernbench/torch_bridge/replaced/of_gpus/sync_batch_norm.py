"""The operations of SyncBatchNorm, which PyTorch implements for GPUs only.

Statistics are in float32, or in the input's dtype if that is wider, as on CUDA.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.of_all import OperatorCall, implement, library_of_all

_Stats = tuple[Tensor, Tensor]


def install(patches: Patches) -> None:
    """Implement them on the CPU, with shape functions for runs without data."""
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    kernels = {
        "batch_norm_stats": _stats,
        "batch_norm_gather_stats_with_counts": _gather,
        "batch_norm_elemt": _normalize,
        "batch_norm_backward_reduce": _backward_reduce,
        "batch_norm_backward_elemt": _backward,
    }
    implement(library, kernels, "CPU", "Meta")


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _dims(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1 for _ in range(like.dim() - 2)))


def _centred(input: Tensor, mean: Tensor) -> Tensor:
    return _wide(input) - _per_channel(mean, input)


def _stats(call: OperatorCall) -> _Stats:
    variance, mean = torch.var_mean(_wide(call.input), _dims(call.input), correction=0)
    return mean, (variance + call.eps).rsqrt()


def _gather(call: OperatorCall) -> _Stats:
    """Return mean and inverse deviation over all ranks from each rank's: ``(ranks, channels)``."""
    weights = _wide(call.counts)[:, None]
    total = weights.sum()
    mean, squares = _wide(call.mean), _wide(call.invstd).square().reciprocal() - call.eps
    joint = (mean * weights).sum(0) / total
    variance = ((squares + (mean - joint).square()) * weights).sum(0) / total
    for running, now in (
        (call.running_mean, joint),
        (call.running_var, variance * (total / (total - 1))),
    ):
        if running is not None:
            running.lerp_(now.to(running.dtype), call.momentum)
    return joint, (variance + call.eps).rsqrt()


def _normalize(call: OperatorCall) -> Tensor:
    centred = _centred(call.input, call.mean) * _per_channel(call.invstd, call.input)
    if call.weight is not None:
        centred = centred * _per_channel(call.weight, call.input)
    if call.bias is not None:
        centred = centred + _per_channel(call.bias, call.input)
    return centred.to(call.input.dtype)


def _backward_reduce(call: OperatorCall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sums of the gradient and of its product with the centred input; weight gradients."""
    dims = _dims(call.input)
    sum_dy = _wide(call.grad_out).sum(dims)
    sum_dy_xmu = (_wide(call.grad_out) * _centred(call.input, call.mean)).sum(dims)
    dtype = sum_dy.dtype if call.weight is None else call.weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * call.invstd).to(dtype), sum_dy.to(dtype)


def _backward(call: OperatorCall) -> Tensor:
    total = call.count.sum()
    factor = _per_channel(call.invstd.square() * call.sum_dy_xmu / total, call.input)
    wide = _wide(call.grad_out) - _per_channel(call.sum_dy / total, call.input)
    wide = wide - _centred(call.input, call.mean) * factor
    scale = call.invstd if call.weight is None else call.invstd * call.weight
    return (wide * _per_channel(scale, call.input)).to(call.input.dtype)
