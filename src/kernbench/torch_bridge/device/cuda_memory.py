"""``torch.cuda.memory_allocated`` and the like, answered by the model of the allocator."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.cuda.memory

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.memory.allocator import Amount, CachingAllocator
from kernbench.torch_bridge.placement.allocations import reallocate
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, sip_of
from kernbench.torch_bridge.processes.process import current

_resize = torch.UntypedStorage.resize_
_NONE = Amount()


def install(patches: Patches) -> None:
    """Replace the C++ functions that PyTorch's own functions call."""
    patches.set(torch.UntypedStorage, "resize_", _resized)
    patches.set_all(
        torch._C,
        _cuda_memoryStats=_statistics,
        _cuda_resetPeakMemoryStats=_reset_peaks,
        _cuda_resetAccumulatedMemoryStats=_reset_sums,
        _cuda_emptyCache=_empty_cache,
        _cuda_setMemoryFraction=_set_fraction,
        _cuda_getMemoryFraction=_fraction,
        _accelerator_isAllocatorInitialized=lambda: True,
        _accelerator_getDeviceStats=_statistics,
        _accelerator_resetPeakStats=_reset_peaks,
        _accelerator_resetAccumulatedStats=_reset_sums,
        _accelerator_emptyCache=_empty_cache,
        _accelerator_emptyHostCache=lambda: None,
        _accelerator_getMemoryInfo=mem_get_info,
        _accelerator_setAllocatorSettings=_set_settings,
        _accelerator_getAllocatorSettings=_settings,
        _cuda_cudaCachingAllocator_set_allocator_settings=_set_settings,
    )
    patches.set_all(torch.cuda.memory, is_initialized=lambda: True, _lazy_init=lambda: None)
    for owner in (torch.cuda, torch.cuda.memory):
        patches.set(owner, "mem_get_info", mem_get_info)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the number of free bytes of a device, and of all its bytes."""
    _allocator(device)
    shared_device = current().session.memories.device(_sip(device))
    return shared_device.free_bytes, shared_device.capacity_bytes


def _sip(device: Any) -> int:
    return sip_of(DEVICE_TYPE if device is None else device)


def _allocator(device: Any = None) -> CachingAllocator:
    process = current()
    allocator = process.session.memories.allocator(process, _sip(device))
    allocator.settle()
    return allocator


def _resized(self: Any, size_bytes: int) -> Any:
    capture = current().capture
    with nullcontext() if capture is None else capture.resizing(self):
        resize = _resize(self, size_bytes)
        reallocate(self)
    return resize


def _reset_peaks(device: Any = None) -> None:
    _allocator(device).amounts.reset_peaks()


def _reset_sums(device: Any = None) -> None:
    _allocator(device).amounts.reset_sums()


def _set_fraction(fraction: float, device: Any = None) -> None:
    capacity_bytes = current().session.memories.device(_sip(device)).capacity_bytes
    _allocator(device).most_bytes = int(fraction * capacity_bytes)


def _fraction(device: Any = None) -> float:
    capacity_bytes = current().session.memories.device(_sip(device)).capacity_bytes
    most_bytes = _allocator(device).most_bytes
    return 1.0 if most_bytes is None else most_bytes / capacity_bytes


def _empty_cache() -> None:
    _allocator().empty_cache()


def _set_settings(text: str) -> None:
    process = current()
    process.session.memories.change_settings(process, text)


def _settings() -> str:
    process = current()
    return process.session.memories.settings_of(process).text


def _statistics(device: Any = None) -> dict[str, Any]:
    """Return the nested statistics of ``torch.cuda.memory_stats``; pools are not separated."""
    allocator = _allocator(device)
    amounts = allocator.amounts
    kept_bytes = amounts.reserved_bytes.current - amounts.allocated_bytes.current
    kept = Amount(kept_bytes)
    return {
        "allocated_bytes": _by_pool(amounts.allocated_bytes),
        "active_bytes": _by_pool(amounts.allocated_bytes),
        "requested_bytes": _by_pool(amounts.requested_bytes),
        "reserved_bytes": _by_pool(amounts.reserved_bytes),
        "inactive_split_bytes": _by_pool(kept),
        "allocation": _by_pool(amounts.allocations),
        "active": _by_pool(amounts.allocations),
        "segment": _by_pool(amounts.segments),
        "inactive_split": _by_pool(_NONE),
        "num_alloc_retries": allocator.num_retries,
        "num_ooms": allocator.num_failures,
        "oversize_allocations": _entries(_NONE),
        "oversize_segments": _entries(_NONE),
    }


def _by_pool(amount: Amount) -> dict[str, dict[str, int]]:
    return {"all": _entries(amount), "small_pool": _entries(_NONE), "large_pool": _entries(_NONE)}


def _entries(amount: Amount) -> dict[str, int]:
    return {name: getattr(amount, name) for name in ("current", "peak", "allocated", "freed")}
