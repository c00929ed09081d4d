"""Parts of PyTorch and Python that suppose real processes or devices."""

from __future__ import annotations

import signal
import threading
from typing import Any

import torch
import torch.serialization
import torch.utils.data

from kernbench.torch_bridge.device.names import is_simulated, with_index
from kernbench.torch_bridge.device.residence import Residence, reside
from kernbench.torch_bridge.patches import Patches

_BEFORE_CPU = 5
"""PyTorch asks its own tagger of CPU storages at 10."""
_init_loader = torch.utils.data.DataLoader.__init__
_set_signal = signal.signal


def install(patches: Patches) -> None:
    """Replace them."""
    patches.set(torch.utils.data.DataLoader, "__init__", _loader_without_workers)
    patches.set(torch.Tensor, "pin_memory", lambda self, device=None: self)
    patches.set(signal, "signal", _signal_on_main)
    _let_storages_be_saved(patches)
    _let_storages_be_copied(patches)


def _loader_without_workers(self: Any, *args: Any, **kwargs: Any) -> None:
    """``DataLoader.__init__``: batches are made in the rank itself.

    Workers would be forks of a process with all ranks in it, and pinning a thread beside them.
    """
    names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names):
        rest = ("collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn")
        given |= dict(zip(rest, args[len(names) :], strict=False))
    given |= {"num_workers": 0, "pin_memory": False}
    for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
        given.pop(name, None)
    _init_loader(self, **given)


def _signal_on_main(number: int, handler: Any) -> Any:
    """``signal.signal``, which Python allows on its main thread only, where no rank is."""
    if threading.current_thread() is threading.main_thread():
        return _set_signal(number, handler)
    return signal.getsignal(number)


def _let_storages_be_saved(patches: Patches) -> None:
    """Save storages with the device that they are on, and load them there."""
    registry: Any = torch.serialization._package_registry
    entry = (_BEFORE_CPU, _location_of, _restored)
    registry.append(entry)
    registry.sort()
    patches.on_close(registry.remove, entry)


def _location_of(storage: Any) -> str | None:
    storage = getattr(storage, "_untyped_storage", storage)
    residence: Residence | None = getattr(storage, "_kernbench", None)
    return None if residence is None or residence.device is None else str(residence.device)


def _restored(storage: Any, location: str) -> Any:
    if not is_simulated(location):
        return None
    untyped = getattr(storage, "_untyped_storage", storage)
    reside(untyped, with_index(location), "torch.load")
    return storage


def _let_storages_be_copied(patches: Patches) -> None:
    """Let a clone of a storage (which ``copy.deepcopy`` makes) be where the storage is."""
    clone = torch.UntypedStorage.clone

    def clone_there(storage: Any) -> Any:
        made = clone(storage)
        residence: Residence | None = getattr(storage, "_kernbench", None)
        if residence is not None:
            reside(made, residence.device, "a copy of a storage")
        return made

    patches.set(torch.UntypedStorage, "clone", clone_there)
