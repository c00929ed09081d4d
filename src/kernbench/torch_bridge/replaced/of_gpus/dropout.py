"""Dropout as one operation, as on a GPU; PyTorch composes it of four for tensors of the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.of_all import compose, overriding


def install(patches: Patches) -> None:
    """Replace what ``dropout`` is composed of."""
    with overriding(patches) as library:
        compose(library, "dropout", _dropout)


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
