"""The memory of the devices: what each process has of it, and what happens when it is full."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from kernbench.clock import user_site
from kernbench.errors import OutOfMemoryError
from kernbench.torch_bridge.memory.allocator import Block, CachingAllocator, DeviceFullError
from kernbench.torch_bridge.processes.process import current

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.torch_bridge.processes.process import Process

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MOST_NAMED = 4


class DeviceMemoryError(OutOfMemoryError, torch.OutOfMemoryError):
    """A device's HBM is exceeded; names the allocation, its rank and line, and what is in use."""


class SharedDevice:
    """The HBM of one SIP, which all processes on it share."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.reserved_bytes

    def reserve(self, size_bytes: int) -> None:
        """Take a segment.

        Raises:
            DeviceFullError: There is no room.
        """
        if size_bytes > self.free_bytes:
            raise DeviceFullError
        self.reserved_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give a segment back."""
        self.reserved_bytes -= size_bytes


class Memories:
    """The memory of all devices of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._devices: dict[int, SharedDevice] = {}
        self.allocators: dict[tuple[Process, int], CachingAllocator] = {}
        """By process and device."""

    def device(self, sip_id: int) -> SharedDevice:
        """Return what all processes share."""
        found = self._devices.get(sip_id)
        if found is None:
            capacity_bytes = self._machine.sip_at(sip_id).hbm_bytes
            found = self._devices[sip_id] = SharedDevice(capacity_bytes)
        return found

    def allocator(self, process: Process, sip_id: int) -> CachingAllocator:
        """Return a process's allocator of a device."""
        found = self.allocators.get((process, sip_id))
        if found is None:
            device = self.device(sip_id)
            found = CachingAllocator(device.reserve, device.release)
            self.allocators[process, sip_id] = found
        return found


def allocate(process: Process, sip_id: int, size_bytes: int, label: str) -> Block | None:
    """Return a block for a process; None for nothing.

    Raises:
        DeviceMemoryError: The device is full.
    """
    if not size_bytes:
        return None
    allocator = process.allocators.get(sip_id)
    if allocator is None:
        allocator = process.session.memories.allocator(process, sip_id)
        process.allocators[sip_id] = allocator
    try:
        stream = process.private_pool or process.state.stream
        return allocator.allocate(size_bytes, stream, label)
    except DeviceFullError:
        raise _out_of_memory(process, allocator, sip_id, size_bytes, label) from None


def reallocate(storage: Any) -> None:
    """Note that a storage has another size now."""
    residence = getattr(storage, "_kernbench", None)
    if residence is None or residence.device is None:
        return
    if residence.block is not None:
        residence.block.free()
        residence.block = None
    current().session.addresses.forget()
    residence.block = allocate(current(), residence.sip_id, storage.nbytes(), "resize_")


def _out_of_memory(
    process: Process, allocator: CachingAllocator, sip_id: int, size_bytes: int, label: str
) -> DeviceMemoryError:
    device = process.session.memories.device(sip_id)
    amounts = allocator.amounts
    used, reserved = amounts.allocated_bytes.current, amounts.reserved_bytes.current
    others = device.reserved_bytes - reserved
    lines = [
        f"CUDA out of memory. Tried to allocate {shown(size_bytes)} for {label or 'a tensor'} on "
        f"rank {process.rank} at {user_site()}",
        f"  cuda:{sip_id} has {shown(device.capacity_bytes)}, of which "
        f"{shown(device.free_bytes)} is free: {shown(used)} is in tensors of this rank, "
        f"{shown(reserved - used)} in what its allocator keeps"
        + (f", {shown(others)} with other ranks" if others else ""),
    ]
    by_label = Counter[str]()
    for block in allocator.in_use:
        by_label[block.label or "other tensors"] += block.size
    named = ", ".join(f"{shown(size)} {name}" for name, size in by_label.most_common(_MOST_NAMED))
    if named:
        lines.append(f"  most of it was made by: {named}")
    lines.append(
        "  shard or shrink the model, the batch or the optimizer's state, or take --machine"
    )
    return DeviceMemoryError("\n".join(lines))


def shown(size_bytes: int) -> str:
    """Return bytes as people read them.

    >>> shown(1536), shown(1 << 34)
    ('1.50 KiB', '16.00 GiB')
    """
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_UNITS[unit]}" if unit else f"{size_bytes} B"
