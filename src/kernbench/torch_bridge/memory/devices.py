"""The memory of the devices, and how much of it each process has reserved."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Generic, TypeVar

from kernbench.hardware import Machine
from kernbench.torch_bridge.memory.allocator import CachingAllocator, DeviceFullError
from kernbench.torch_bridge.memory.settings import AllocatorSettings

Owner = TypeVar("Owner", bound=Hashable)
"""What owns an allocator on each device: a process."""


class SharedDevice:
    """The HBM of one SIP, which all processes on it share."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0

    @property
    def free_bytes(self) -> int:
        return max(self.capacity_bytes - self.reserved_bytes, 0)

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
        self.settings: dict[Owner, AllocatorSettings] = {}
        """What processes ask of their allocators."""

    def forget(self) -> None:
        """Let all processes be gone."""
        self._devices.clear()
        self.allocators.clear()
        self.settings.clear()

    def device(self, sip_id: int) -> SharedDevice:
        """Return the memory of a device, which all processes share."""
        shared_device = self._devices.get(sip_id)
        if shared_device is None:
            capacity_bytes = self._machine.sip_at(sip_id).hbm_bytes
            shared_device = self._devices[sip_id] = SharedDevice(capacity_bytes)
        return shared_device

    def peaks(self) -> dict[int, int]:
        """Return the most bytes that tensors of processes held at a time, by SIP."""
        numbers: dict[int, int] = {}
        for (_, sip_id), allocator in self.allocators.items():
            peak = allocator.amounts.allocated_bytes.peak_of_run
            numbers[sip_id] = numbers.get(sip_id, 0) + peak
        return numbers

    def settings_of(self, process: Owner) -> AllocatorSettings:
        """Return the settings of the calling process: at first those of its environment."""
        settings = self.settings.get(process)
        if settings is None:
            settings = self.settings[process] = AllocatorSettings.of(os.environ)
        return settings

    def change_settings(self, process: Owner, text: str) -> None:
        """Let the calling process's allocators go by other settings from now on."""
        self.settings_of(process).read(text)
        for (owner, _), allocator in self.allocators.items():
            if owner == process:
                # What was chosen by the rules before is not taken back unseen.
                allocator.settle()

    def allocator(self, process: Owner, sip_id: int) -> CachingAllocator:
        """Return a process's allocator of a device, on which it has a context from then on."""
        caching_allocator = self.allocators.get((process, sip_id))
        if caching_allocator is None:
            device, settings = self.device(sip_id), self.settings_of(process)
            # Where it does not fit, the first segment does not either.
            device.reserved_bytes += int(self._machine.sip_at(sip_id).context_mib * 2**20)
            capacity = device.capacity_bytes
            caching_allocator = CachingAllocator(device.reserve, device.release, capacity, settings)
            if settings.memory_fraction is not None:
                caching_allocator.most_bytes = int(settings.memory_fraction * capacity)
            self.allocators[process, sip_id] = caching_allocator
        return caching_allocator
