"""On which simulated device the memory of a tensor is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernbench.torch_bridge.device.in_use import Use

storage_of: Any = torch._C.TensorBase.untyped_storage
"""Returns the storage of a tensor; a wrapper has none and raises."""


class Residence:
    """What the simulation knows of one allocation; an attribute of the storage that it belongs to.

    It lives as long as the storage does. ``device`` is None for memory of the host.
    """

    __slots__ = ("__weakref__", "device", "sip_id", "uses")

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self.sip_id: int = -1 if device is None else device.index
        self.uses: tuple[Use, ...] = ()
        """Collectives that nobody has waited for."""


def residence_of(tensor: Tensor) -> Residence | None:
    """Return where a tensor's memory is; None on the host, or without memory of its own."""
    try:
        found: Residence | None = getattr(storage_of(tensor), "_kernbench", None)
    except (NotImplementedError, RuntimeError):
        # Wrappers and sparse tensors have no storage.
        return None
    return None if found is None or found.device is None else found


def settle(tensor: Tensor, device: torch.device | None) -> Residence | None:
    """Put a tensor's memory in a place, if it is in none yet, and return what is known of it."""
    try:
        storage = storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        return None
    found: Residence | None = getattr(storage, "_kernbench", None)
    if found is None or (found.device is None and device is not None):
        found = storage._kernbench = Residence(device)
    return found
