"""Storages: the memory of tensors on its device, made, moved, saved and loaded without a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.serialization

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import MixedDevicesError
from kernbench.torch_bridge.device.tensors import asking, device_of
from kernbench.torch_bridge.placement.names import (
    CPU,
    DEVICE_TYPE,
    EXECUTING,
    META,
    is_simulated,
    with_index,
)
from kernbench.torch_bridge.placement.residence import cpp_place, reside
from kernbench.torch_bridge.processes.process import current

_Storage = torch.UntypedStorage
_make, _clone, _move, _copy = _Storage.__new__, _Storage.clone, _Storage.to, _Storage.copy_
_write: Any = _Storage._write_file
_is_shared: Any = _Storage.is_shared
_set = torch.Tensor.set_
_BEFORE_CPU = 5
"""PyTorch's own tagger of CPU storages has priority 10."""


def install(patches: Patches) -> None:
    """Let storages be of simulated devices."""
    registry: Any = torch.serialization._package_registry
    entry = (_BEFORE_CPU, _location_of, _restored)
    registry.append(entry)
    registry.sort()
    patches.on_close(registry.remove, entry)
    methods = (clone, to, cuda, cpu, copy_, is_shared, _write_file)
    patches.set_all(
        _Storage,
        **{item.__name__: item for item in methods},
        __new__=staticmethod(_made),
        device=property(_device),
    )
    patches.set(torch.Tensor, "set_", asking(set_, "set_"))


def _location_of(storage: Any) -> str | None:
    residence = getattr(getattr(storage, "_untyped_storage", storage), "_kernbench", None)
    return None if residence is None or residence.device is None else str(residence.device)


def _device(storage: Any) -> torch.device:
    residence = None if EXECUTING.depth else getattr(storage, "_kernbench", None)
    return getattr(residence, "device", None) or cpp_place(storage)


def _made(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """``UntypedStorage(...)``."""
    if device is None or not is_simulated(device):
        return _make(cls, *args, **({} if device is None else {"device": device}), **kwargs)
    if args and isinstance(args[0], Sequence):
        return torch.tensor(args[0], dtype=torch.uint8, device=device).untyped_storage()
    place = CPU if current().session.run.has_data else META
    storage = _make(cls, *args, device=place, **kwargs)
    reside(storage, with_index(device), "torch.UntypedStorage")
    return storage


def _held(storage: Any) -> torch.Tensor:
    """Return a tensor of a storage's bytes."""
    return torch.empty(0, dtype=torch.uint8, device=_device(storage)).set_(storage)


def _restored(storage: Any, location: str) -> Any:
    if not is_simulated(location):
        return None
    untyped = getattr(storage, "_untyped_storage", storage)
    if not current().session.run.has_data:
        storage = untyped = _make(_Storage, untyped.nbytes(), device=META)
    reside(untyped, with_index(location), "torch.load")
    return storage


def clone(storage: Any) -> Any:
    """``UntypedStorage.clone``, as ``copy.deepcopy`` calls it, also while a graph is compiled.

    What the bridge itself keeps takes no memory of a device.
    """
    result = _clone(storage)
    residence = None if EXECUTING.depth else getattr(storage, "_kernbench", None)
    if residence is not None and getattr(result, "_kernbench", None) is None:
        reside(result, residence.device, "a copy of a storage")
    return result


def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
    """``UntypedStorage.to``, as ``map_location`` functions of ``torch.load`` may call it."""
    if DEVICE_TYPE not in (_device(storage).type, torch.device(device).type):
        return _move(storage, device=device, non_blocking=non_blocking)
    held = _held(storage)
    moved = held.to(device, non_blocking=non_blocking)
    return storage if moved is held else moved.untyped_storage()


def cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """``UntypedStorage.cuda``."""
    target = with_index(DEVICE_TYPE if device is None else device)
    return to(storage, device=target, non_blocking=non_blocking)


def cpu(storage: Any) -> Any:
    """``UntypedStorage.cpu``."""
    return to(storage, device=CPU)


def copy_(storage: Any, source: Any, non_blocking: bool = False) -> Any:
    """``UntypedStorage.copy_``."""
    if DEVICE_TYPE not in (_device(storage).type, _device(source).type):
        return _copy(storage, source, non_blocking)
    _held(storage).copy_(_held(source), non_blocking)
    return storage


def is_shared(storage: Any) -> bool:
    """``UntypedStorage.is_shared``: memory of a device is."""
    return _device(storage).type == DEVICE_TYPE or _is_shared(storage)


def _write_file(storage: Any, *args: Any) -> None:
    """``UntypedStorage._write_file``, as ``pickle`` calls it: C++ copies what it writes."""
    _write(cpu(storage), *args)


def set_(self: torch.Tensor, source: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor.set_``: a tensor stays on its device."""
    if source is None:
        return _set(self, *args, **kwargs)
    is_tensor = isinstance(source, torch.Tensor)
    place = device_of(source) if is_tensor else _device(getattr(source, "_untyped_storage", source))
    if not EXECUTING.depth and place.type != "meta" and device_of(self) != place:
        raise MixedDevicesError(
            f'Attempted to set the storage of tensor on device "{device_of(self)}" to a storage on '
            f'different device "{place}". This is no longer allowed; the devices must match.'
        )
    return _set(self, source, *args, **kwargs)
