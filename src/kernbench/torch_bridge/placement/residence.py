"""Which simulated device holds the memory of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernbench.torch_bridge.placement.allocations import allocate
from kernbench.torch_bridge.processes.process import Process, current
from kernbench.torch_bridge.processes.python_calls import IN_THREAD

if TYPE_CHECKING:
    from kernbench.torch_bridge.memory import MemoryBlock
    from kernbench.torch_bridge.placement.in_use import Use

storage_of: Any = torch._C.TensorBase.untyped_storage
"""Returns the storage of a tensor; raises for a wrapper, which has none."""

cpp_place: Any = torch._C.StorageBase.device.__get__
"""Returns the device that C++ has a storage on."""
own_set: Any = torch._C.TensorBase.set_
"""Sets a tensor's storage as C++ does, wherever that is."""

_new = object.__new__
_BY_ROWS, _BY_COLUMNS = (
    ("values", "crow_indices", "col_indices"),
    ("values", "ccol_indices", "row_indices"),
)
_PARTS = {
    torch.sparse_coo: ("_values", "_indices"),
    torch.sparse_csr: _BY_ROWS,
    torch.sparse_bsr: _BY_ROWS,
    torch.sparse_csc: _BY_COLUMNS,
    torch.sparse_bsc: _BY_COLUMNS,
}
"""Methods that return the tensors which hold a sparse tensor's memory, its elements first."""


def storage_or_none(value: Any) -> Any:
    """Return what a tensor's elements are in; None for what has no such memory, as wrappers."""
    try:
        return storage_of(value) if isinstance(value, Tensor) else None
    except (NotImplementedError, RuntimeError):
        return None


class Residence:
    """The simulation's record of one allocation: an attribute of its storage.

    It lives as long as the storage does. ``device`` is None for memory of the host.
    """

    __slots__ = ("__weakref__", "block", "device", "is_open", "sip_id", "uses")

    def __init__(
        self, device: torch.device | None, sip_id: int = -1, block: MemoryBlock | None = None
    ) -> None:
        self.device = device
        self.sip_id = sip_id
        self.block = block
        """Its block of the device's memory."""
        self.is_open = False
        """Whether C++ may have made it, on its CPU, for an operation with device tensors."""
        self.uses: tuple[Use, ...] = ()
        """Uses by pending collectives."""

    def __del__(self) -> None:
        # Missing if an interrupt came before it was set.
        block: MemoryBlock | None = getattr(self, "block", None)
        if block is not None:
            block.owner.returned.append(block)
        calls = IN_THREAD.calls
        if calls is not None and calls.is_on:
            # On a GPU, C++ frees memory.
            calls.of_process.num_own += 1


def residence_of(tensor: Tensor) -> Residence | None:
    """Return where a tensor's memory is; None if on the host, or if it has none of its own."""
    residence = known_residence(tensor)
    return None if residence is None or residence.device is None else residence


def known_residence(tensor: Tensor) -> Residence | None:
    """Return where a tensor's memory is, possibly the host; None if it is not known."""
    try:
        residence: Residence | None = getattr(storage_of(tensor), "_kernbench", None)
    except (NotImplementedError, RuntimeError):
        parts = parts_of(tensor)
        return known_residence(parts[0]) if parts else None
    return residence


def parts_of(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that hold the memory of a sparse tensor; none for wrappers."""
    names = _PARTS.get(tensor.layout, ())
    if not names:
        return []
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        return [getattr(tensor, name)() for name in names]


def reside(
    storage: Any, device: torch.device | None, label: str, tensor: Tensor | None = None
) -> Residence:
    """Give a storage, and a tensor with it, memory on a device or the host; for what ``label``.

    Raises:
        DeviceMemoryError: The device is full.
    """
    if device is None:
        residence = storage._kernbench = Residence(None)
        return residence
    process = current()
    sip_id = process.first_sip + device.index
    block = allocate(process, sip_id, storage.nbytes(), label, tensor)
    residence = storage._kernbench = Residence(device, sip_id, block)
    return residence


def settle_on(process: Process, tensor: Tensor, device: torch.device, label: str) -> None:
    """Place a new tensor on a device.

    Raises:
        DeviceMemoryError: The device is full.
    """
    try:
        storage = storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        for part in parts_of(tensor):
            settle_on(process, part, device, label)
        return
    if getattr(storage, "_kernbench", None) is None:
        sip_id = process.first_sip + device.index
        block = allocate(process, sip_id, storage.nbytes(), label, tensor)
        # What __init__ does, inlined: this runs for every result.
        residence = _new(Residence)
        residence.device, residence.sip_id, residence.block = device, sip_id, block
        residence.is_open, residence.uses = False, ()
        storage._kernbench = residence


def settle(tensor: Tensor, device: torch.device | None, label: str = "") -> Residence | None:
    """Place a tensor's memory if it has no place yet, and return its residence.

    Raises:
        DeviceMemoryError: The device is full.
    """
    storage = storage_or_none(tensor)
    if storage is None:
        settled = [settle(part, device, label) for part in parts_of(tensor)]
        return settled[0] if settled else None
    residence: Residence | None = getattr(storage, "_kernbench", None)
    if residence is None:
        residence = reside(storage, device, label, tensor)
    elif residence.device is None and device is not None:
        # C++ made it, and passed it to a collective, before it was known to be on a device.
        process = current()
        residence.device, residence.sip_id = device, process.first_sip + device.index
        residence.block = allocate(process, residence.sip_id, storage.nbytes(), label, tensor)
    return residence


def settle_open(tensor: Tensor, device: torch.device) -> None:
    """Place a tensor on a device if C++ made it for an operation with tensors of that device."""
    residence = settle(tensor, None)
    if residence is not None and residence.is_open:
        settle(tensor, device, "autograd")
