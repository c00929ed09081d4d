"""The memory of the devices, and how much of it each process has reserved."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from kernbench.torch_bridge.memory.allocator import CachingAllocator, DeviceFullError

if TYPE_CHECKING:
    from kernbench.hardware import Machine

Owner = TypeVar("Owner", bound=Hashable)
"""What owns an allocator on each device: a process."""


class SharedDevice:
    """The HBM of one SIP, which all processes on it share."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.reserved_bytes

    def reserve(self, size_bytes: int) -> None:
        """Reserve a segment.

        Raises:
            DeviceFullError: There is no room.
        """
        if size_bytes > self.free_bytes:
            raise DeviceFullError
        self.reserved_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release a segment."""
        self.reserved_bytes -= size_bytes


class Memories(Generic[Owner]):
    """The memory of all devices of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._devices: dict[int, SharedDevice] = {}
        self.allocators: dict[tuple[Owner, int], CachingAllocator] = {}
        """Allocators by process and device."""

    def forget(self) -> None:
        """Let all processes be gone."""
        self._devices.clear()
        self.allocators.clear()

    def device(self, sip_id: int) -> SharedDevice:
        """Return the memory of a device, which all processes share."""
        found = self._devices.get(sip_id)
        if found is None:
            capacity_bytes = self._machine.sip_at(sip_id).hbm_bytes
            found = self._devices[sip_id] = SharedDevice(capacity_bytes)
        return found

    def allocator(self, process: Owner, sip_id: int) -> CachingAllocator:
        """Return a process's allocator of a device."""
        found = self.allocators.get((process, sip_id))
        if found is None:
            device = self.device(sip_id)
            found = CachingAllocator(device.reserve, device.release)
            self.allocators[process, sip_id] = found
        return found
