"""Transformer Engine's kernels over lists of tensors: optimizers, norms, scales.

Source: ``transformer_engine/common/multi_tensor``. A call is timed as one pass over the bytes of
all its tensors; the launches of some thousand chunks each are not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.replaced.transformer_engine.kernels import launch, refuse_quantized

Lists = Sequence[Sequence[Tensor]]


def _run(
    name: str, step: Any, lists: Lists, written: Sequence[int], *more: Tensor, over: Sequence[int]
) -> None:
    """Run ``step``, of a tensor of each list and ``more``, as one kernel for all of them.

    ``written`` are the lists that it writes, ``over`` those of them that it reads, too.
    """
    for tensors in lists:
        refuse_quantized(name, *tensors)
    count, flat = len(lists[0]), [tensor for tensors in lists for tensor in tensors]

    def compute(*value: Tensor) -> None:
        for number in range(count):
            step(*value[number : len(flat) : count], *value[len(flat) :])

    targets, read = (
        [tensor for number in some for tensor in lists[number]] for some in (written, over)
    )
    launch(name, compute, (*flat, *more), targets, over=read)


def multi_tensor_adam(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: Any, beta1: float, beta2: float,
    epsilon: float, step: Any, mode: int, bias_correction: int, weight_decay: float,
    inv_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """Step parameters by Adam; lists are ``[g, p, m, v]`` and masters in float32, if there are.

    ``mode`` 1 decays weights, 0 adds the decay to gradients. A captured step has ``lr``, ``step``
    and ``inv_scale`` on the device.
    """

    def adam(g: Tensor, p: Tensor, m: Tensor, v: Tensor, *rest: Tensor) -> None:
        master = rest[0] if len(tensor_lists) > 4 else p
        numbers = rest[len(tensor_lists) - 4 :]
        rate, count, scale = numbers if numbers else (lr, step, 1.0)
        wide, weight = g.float() * scale, master.float()
        if mode == 0:
            wide = wide + weight_decay * weight
        first = beta1 * m.float() + (1 - beta1) * wide
        second = beta2 * v.float() + (1 - beta2) * wide * wide
        m.copy_(first)
        v.copy_(second)
        if bias_correction:
            first, second = first / (1 - beta1**count), second / (1 - beta2**count)
        update = first / (second.sqrt() + epsilon)
        if mode != 0:
            update = update + weight_decay * weight
        weight = weight - rate * update
        master.copy_(weight)
        p.copy_(weight)

    on_device = () if inv_scale is None else (lr, step, inv_scale)
    count = len(tensor_lists)
    # Of a parameter and its master the master is read.
    over = (2, 3, 4) if count > 4 else (1, 2, 3)
    _run("multi_tensor_adam", adam, tensor_lists, range(1, count), *on_device, over=over)


def multi_tensor_sgd(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, wd: float, momentum: float,
    dampening: float, lr: float, nesterov: bool, first_run: bool, wd_after_momentum: bool,
    scale: float,
) -> None:  # fmt: skip
    """Step parameters by SGD; lists are ``[g, p, momentum]`` and copies of p, if there are."""

    def sgd(g: Tensor, p: Tensor, m: Tensor, *copies: Tensor) -> None:
        wide = g.float() * scale
        if wd and not wd_after_momentum:
            wide = wide + wd * p.float()
        if momentum:
            kept = wide if first_run else m.float() * momentum + (1 - dampening) * wide
            m.copy_(kept)
            wide = wide + momentum * kept if nesterov else kept
        if wd and wd_after_momentum:
            wide = wide + wd * p.float()
        weight = p.float() - lr * wide
        for target in (p, *copies):
            target.copy_(weight)

    _run("multi_tensor_sgd", sgd, tensor_lists, range(1, len(tensor_lists)), over=(1, 2))


def multi_tensor_scale(
    chunk_size: int, is_infinite: Tensor, tensor_lists: Lists, scale: Any
) -> None:
    """Write the first list, scaled, to the second, and note numbers that are not finite."""
    from_device = isinstance(scale, Tensor)

    def scaled(source: Tensor, target: Tensor, flag: Tensor, *number: Tensor) -> None:
        if not bool(torch.isfinite(source).all()):
            flag.fill_(1)
        target.copy_(source.float() * (number[0] if from_device else scale))

    more = (is_infinite, scale) if from_device else (is_infinite,)
    _run("multi_tensor_scale", scaled, tensor_lists, (1,), *more, over=())


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool | None = False
) -> tuple[Tensor, Tensor]:
    """Return the norm of all tensors of a list, ``(1)``, and of each, ``(n)`` or ``(0)``."""
    return _norms("multi_tensor_l2norm", tensor_lists[0], None, bool(per_tensor))


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, inv_scale: Tensor,
    per_tensor: bool | None = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return norms as of :func:`multi_tensor_l2norm` of tensors times a number on the device."""
    return _norms("multi_tensor_unscale_l2norm", tensor_lists[0], inv_scale, bool(per_tensor))


def _norms(
    name: str, tensors: Sequence[Tensor], factor: Tensor | None, per_tensor: bool
) -> tuple[Tensor, Tensor]:
    refuse_quantized(name, *tensors)
    whole = tensors[0].new_empty(1, dtype=torch.float32)
    parts = whole.new_empty(len(tensors) if per_tensor else 0)

    def compute(*value: Any) -> None:
        *items, factor, whole, parts = value
        norms = torch.stack([item.float().norm() for item in items])
        norms = norms if factor is None else norms * factor
        whole.copy_(norms.norm())
        if parts.numel():
            parts.copy_(norms)

    written = (whole, parts) if per_tensor else (whole,)
    launch(name, compute, (*tensors, factor, whole, parts), written)
    return whole, parts
