"""What inputs are filled with and how they lie in memory, besides what a task draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

DRAWN, ITS_OWN = "drawn", "its own"
EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "huge": lambda item: item * (64.0 if item.dtype is torch.float16 else 1e4),
    "tiny": lambda item: item * (1 / 64 if item.dtype is torch.float16 else 1e-6),
    "constant": torch.ones_like,
}
"""What numbers are replaced by besides. What a reference itself makes infinite is not asked for."""
_EVERY = 61
"""Of so many elements one is special: a prime, so that it falls on any place of a row."""


def _sprinkled(tensor: Tensor, *values: float) -> Tensor:
    host = tensor.cpu().clone(memory_format=torch.contiguous_format)
    flat = host.view(-1)
    for index, value in enumerate(values):
        flat[(index + 1) * flat.numel() // 3 % _EVERY :: _EVERY * len(values)] = value
    return on_device(host)


def _strided(tensor: Tensor) -> Tensor:
    """Return a copy whose last two dimensions are swapped in memory, or one with gaps."""
    if tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = torch.zeros(2 * tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return wide[::2].view(tensor.shape).copy_(tensor) if tensor.dim() else tensor


BESIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "infinite": lambda item: _sprinkled(item, math.inf, -math.inf),
    "nan": lambda item: _sprinkled(item, math.nan),
    "strided": _strided,
}
"""What a candidate may get wrong unless the task asks for it; that it does is remarked."""


def on_device(tensor: Tensor) -> Tensor:
    """Return a copy on the device that lies in memory as the tensor does.

    A dimension that repeats one element (of ``expand``) is laid out.
    """
    return _laid(tensor, "cuda")


def on_host(tensor: Tensor) -> Tensor:
    """Return a copy on the host that lies in memory as the tensor does."""
    return _laid(tensor, "cpu")


def _laid(tensor: Tensor, device: str) -> Tensor:
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.is_contiguous() or any(size > 1 and not stride for size, stride in strides):
        return tensor.to(device)
    place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return place.copy_(tensor)
