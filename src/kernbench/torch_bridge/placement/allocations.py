"""Allocating device memory for the calling process, and the error when a device is full."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import torch

from kernbench.clock import user_site
from kernbench.errors import OutOfMemoryError
from kernbench.report import format_size as shown
from kernbench.torch_bridge.memory import CachingAllocator, DeviceFullError, MemoryBlock
from kernbench.torch_bridge.placement.contents import forget_contents
from kernbench.torch_bridge.placement.process_memory import ProcessMemory
from kernbench.torch_bridge.processes.process import Process, current

_MOST_NAMED = 4
_HOST_IS_FULL = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes")


class DeviceMemoryError(OutOfMemoryError, torch.OutOfMemoryError):
    """A device's HBM is full: names the allocation, its rank and line, and what is in use."""


def allocate(
    process: Process, sip_id: int, size_bytes: int, label: str, tensor: Any = None
) -> MemoryBlock | None:
    """Return a block for a process; None for 0 bytes. ``tensor`` is what it is for, if known.

    Raises:
        DeviceMemoryError: The device is full.
    """
    if not size_bytes:
        return None
    allocator = process.allocators.get(sip_id)
    if allocator is None:
        allocator = process.session.memories.allocator(process, sip_id)
        process.allocators[sip_id] = allocator
        allocator.when_reserved = process.host.allocate_segment
        log = process.session.run.op_log.allocations
        if process.memory_use is None and log is not None:
            process.memory_use = ProcessMemory(process, log)
        if process.memory_use is not None:
            allocator.record(process.memory_use)
    try:
        pool, stream = process.private_pool, process.state.stream
        stream = stream if pool is None else pool.on(stream)
        block = allocator.allocate(size_bytes, stream, label)
    except DeviceFullError:
        raise _out_of_memory(process, allocator, sip_id, size_bytes, label) from None
    if allocator.recorder is not None:
        allocator.recorder.allocated(block, tensor)
    return block


def take_buffers(process: Process, sip_id: int, size_bytes: int, label: str) -> None:
    """Take memory for a library that does not ask PyTorch's allocator.

    Raises:
        DeviceMemoryError: The device is full, whatever is cached.
    """
    allocator = process.session.memories.allocator(process, sip_id)
    device = process.session.memories.device(sip_id)
    try:
        device.reserve(size_bytes)
    except DeviceFullError:
        raise _out_of_memory(process, allocator, sip_id, size_bytes, label) from None


def refuse_too_much(process: Process, error: RuntimeError, label: str) -> None:
    """Raise what a device would, where the host lacks memory for what would not fit there either.

    A tensor's values are in the host's memory before the device's is taken.

    Raises:
        DeviceMemoryError: The device has less than what ``error`` says was tried.
    """
    result = _HOST_IS_FULL.search(str(error))
    if result is None:
        return
    size_bytes, sip_id = int(result.group(1)), process.state.sip_id
    memories = process.session.memories
    allocator = process.allocators.get(sip_id) or memories.allocator(process, sip_id)
    used = allocator.amounts.allocated_bytes.current
    reserved = allocator.amounts.reserved_bytes.current
    room = memories.device(sip_id).free_bytes + reserved - used
    if allocator.most_bytes is not None:
        room = min(room, allocator.most_bytes - used)
    if size_bytes > room:
        allocator.num_retries += 1
        allocator.num_failures += 1
        raise _out_of_memory(process, allocator, sip_id, size_bytes, label) from None


def reallocate(storage: Any) -> None:
    """Replace a storage's block after a change of its size."""
    residence = getattr(storage, "_kernbench", None)
    if residence is None or residence.device is None:
        return
    forget_contents(storage)
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
        f"  {process.session.devices[sip_id]} has {shown(device.capacity_bytes)}, of which "
        f"{shown(device.free_bytes)} is free: {shown(used)} is in tensors of this rank, "
        f"{shown(reserved - used)} is cached by its allocator"
        + (f", {shown(others)} with contexts, libraries and other ranks" if others else ""),
    ]
    if reserved > used and not allocator.settings.expandable_segments:
        lines.append(
            f"  of the allocated memory {shown(used)} is allocated by PyTorch, and "
            f"{shown(reserved - used)} is reserved by PyTorch but unallocated. If reserved but "
            "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True "
            "to avoid fragmentation"
            + (
                ": together with what is free it would be enough"
                if size_bytes <= reserved - used + device.free_bytes
                else ""
            )
        )
    if allocator.most_bytes is not None:
        lines.append(
            f"  torch.cuda.set_per_process_memory_fraction lets this rank have "
            f"{shown(allocator.most_bytes)}"
        )
    by_label = Counter[str]()
    for block in allocator.in_use:
        by_label[block.label or "other tensors"] += block.size
    named = ", ".join(f"{shown(size)} {name}" for name, size in by_label.most_common(_MOST_NAMED))
    if named:
        lines.append(f"  most of it was allocated by: {named}")
    lines.append(
        "  shard or shrink the model, the batch or the optimizer's state, or take --machine"
    )
    return DeviceMemoryError("\n".join(lines))
