"""On which simulated device the memory of a tensor is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_storage_of = torch._C.TensorBase.untyped_storage


class Residence:
    """One allocation on a device; an attribute of the storage that it belongs to."""

    __slots__ = ("device", "sip_id")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sip_id: int = device.index


def residence_of(tensor: Tensor) -> Residence | None:
    """Return where a tensor's memory is; None on the host, or without memory of its own."""
    try:
        return getattr(_storage_of(tensor), "_kernbench", None)
    except (NotImplementedError, RuntimeError):
        # Wrappers and sparse tensors have no storage.
        return None


def settle(tensor: Tensor, device: torch.device) -> None:
    """Put a tensor's memory on a device, if it is on none yet."""
    try:
        storage: Any = _storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        return
    if getattr(storage, "_kernbench", None) is None:
        storage._kernbench = Residence(device)


def settle_all(result: Any, device: torch.device) -> None:
    """Put all tensors of an operation's result on a device."""
    if isinstance(result, Tensor):
        settle(result, device)
    elif isinstance(result, (list, tuple)):
        for each in result:
            settle_all(each, device)


def device_among(args: Any) -> torch.device | None:
    """Return the device of the first tensor among arguments that is on one."""
    for arg in args:
        if isinstance(arg, Tensor):
            found = residence_of(arg)
            if found is not None:
                return found.device
        elif isinstance(arg, (list, tuple)):
            device = device_among(arg)
            if device is not None:
                return device
    return None
