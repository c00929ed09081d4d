"""Buckets of gradients, which DDP makes in C++: of the CPU there, as its parameters are."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.torch_bridge.device.residence import residence_of, settle
from kernbench.torch_bridge.patches import Patches

_Reducer: Any = dist.Reducer
_init = _Reducer.__init__
_rebuild = _Reducer._rebuild_buckets
_devices: WeakKeyDictionary[Any, torch.device] = WeakKeyDictionary()


class _OnDevice(TorchDispatchMode):
    """Puts new tensors of fractions on a device; what DDP counts with stays on the host."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if type(made) is Tensor and made.is_floating_point():
            settle(made, self._device, "buckets of DDP")
        return made


def _init_there(self: Any, parameters: Any, *args: Any, **kwargs: Any) -> None:
    found = residence_of(parameters[0])
    if found is None:
        _init(self, parameters, *args, **kwargs)
        return
    with _OnDevice(found.device):
        _init(self, parameters, *args, **kwargs)
    _devices[self] = found.device


def _rebuild_there(self: Any) -> Any:
    device = _devices.get(self)
    if device is None:
        return _rebuild(self)
    with _OnDevice(device):
        return _rebuild(self)


def install(patches: Patches) -> None:
    """Let buckets be where the parameters are."""
    patches.set_all(_Reducer, {"__init__": _init_there, "_rebuild_buckets": _rebuild_there})
