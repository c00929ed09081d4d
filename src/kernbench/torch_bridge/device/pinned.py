"""Pinned host memory: reported as pinned, but copied at the speed of any host memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.placement.residence import residence_of, storage_or_none

NOT_PINNED = "Only dense CPU tensors can be pinned"


def install(patches: Patches) -> None:
    """Let host memory be pinned, without C++."""
    patches.set_all(torch.Tensor, pin_memory=pin_memory, is_pinned=is_pinned)


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """``Tensor.pin_memory``: the tensor itself if its memory is pinned, otherwise a copy.

    Raises:
        RuntimeError: The tensor is on a device.
    """
    if residence_of(self) is not None:
        kind = torch.typename(self.dtype).rpartition(".")[2]
        raise RuntimeError(f"cannot pin a {kind} tensor of {self.device}: only dense CPU tensors")
    return self if is_pinned(self) else pinned(self.clone())


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """``Tensor.is_pinned``."""
    return getattr(storage_or_none(self), "_kernbench_pinned", False)


def pinned(tensor: Tensor) -> Tensor:
    """Mark a tensor's memory as pinned, and return the tensor.

    Raises:
        RuntimeError: It is on a device.
    """
    if residence_of(tensor) is not None:
        raise RuntimeError(NOT_PINNED)
    storage = storage_or_none(tensor)
    if storage is not None:
        storage._kernbench_pinned = True
    return tensor
