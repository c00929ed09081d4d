"""On which simulated device the memory of a tensor is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernbench.torch_bridge.placement.allocations import allocate
from kernbench.torch_bridge.processes.process import current

if TYPE_CHECKING:
    from kernbench.torch_bridge.memory import MemoryBlock
    from kernbench.torch_bridge.placement.in_use import Use
    from kernbench.torch_bridge.processes.process import Process

storage_of: Any = torch._C.TensorBase.untyped_storage
"""Returns the storage of a tensor; a wrapper has none and raises."""

_new = object.__new__


class Residence:
    """What the simulation knows of one allocation; an attribute of the storage that it belongs to.

    It lives as long as the storage does. ``device`` is None for memory of the host.
    """

    __slots__ = ("__weakref__", "block", "device", "is_open", "sip_id", "uses", "written")

    def __init__(
        self, device: torch.device | None, sip_id: int = -1, block: MemoryBlock | None = None
    ) -> None:
        self.device = device
        self.sip_id = sip_id
        self.block = block
        """Its bytes of the device's memory."""
        self.is_open = False
        """Whether C++ may have made it to go with tensors of a device: there it names the CPU."""
        self.written: Any = None
        """Under the sanitizer, of memory that began unwritten: 255 for each byte of a kernel."""
        self.uses: tuple[Use, ...] = ()
        """Collectives that nobody has waited for."""

    def __del__(self) -> None:
        # Missing where an interrupt came before it was set.
        block: MemoryBlock | None = getattr(self, "block", None)
        if block is not None:
            block.owner.returned.append(block)


def residence_of(tensor: Tensor) -> Residence | None:
    """Return where a tensor's memory is; None on the host, or without memory of its own."""
    found = known_residence(tensor)
    return None if found is None or found.device is None else found


def known_residence(tensor: Tensor) -> Residence | None:
    """Return where a tensor's memory is, the host too; None where nobody has said so."""
    try:
        found: Residence | None = getattr(storage_of(tensor), "_kernbench", None)
    except (NotImplementedError, RuntimeError):
        # Wrappers and sparse tensors have no storage.
        return None
    return found


def reside(storage: Any, device: torch.device | None, label: str) -> Residence:
    """Give a storage memory in a place, for what ``label`` says.

    Raises:
        DeviceMemoryError: The device is full.
    """
    if device is None:
        made = storage._kernbench = Residence(None)
        return made
    sip_id: int = device.index
    block = allocate(current(), sip_id, storage.nbytes(), label)
    made = storage._kernbench = Residence(device, sip_id, block)
    return made


def settle_on(process: Process, tensor: Tensor, device: torch.device, label: str) -> None:
    """Put a tensor that has just been made on a device.

    Raises:
        DeviceMemoryError: The device is full.
    """
    try:
        storage = storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        return
    if getattr(storage, "_kernbench", None) is None:
        sip_id: int = device.index
        block = allocate(process, sip_id, storage.nbytes(), label)
        # What __init__ does, which every result would wait for.
        made = _new(Residence)
        made.device, made.sip_id, made.block = device, sip_id, block
        made.is_open, made.written, made.uses = False, None, ()
        storage._kernbench = made


def settle(tensor: Tensor, device: torch.device | None, label: str = "") -> Residence | None:
    """Put a tensor's memory in a place, if it is in none yet, and return what is known of it.

    Raises:
        DeviceMemoryError: The device is full.
    """
    try:
        storage = storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        return None
    found: Residence | None = getattr(storage, "_kernbench", None)
    if found is None:
        found = reside(storage, device, label)
    elif found.device is None and device is not None:
        # C++ made it, and handed it to a collective, before it was known to be on a device.
        found.device, found.sip_id = device, device.index
        found.block = allocate(current(), found.sip_id, storage.nbytes(), label)
    return found


def settle_open(tensor: Tensor, device: torch.device) -> None:
    """Put a tensor that C++ may have made to go with tensors of a device there, if it did."""
    found = settle(tensor, None)
    if found is not None and found.is_open:
        settle(tensor, device, "autograd")
