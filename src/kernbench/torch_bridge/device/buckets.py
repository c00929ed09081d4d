"""DDP's gradient buckets, which C++ makes on the CPU, where it has the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from kernbench.torch_bridge.base.modes import Mode
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.placement.residence import residence_of, settle
from kernbench.torch_bridge.processes.call_counts import unseen

_Reducer: Any = dist.Reducer
_init = _Reducer.__init__
_rebuild = _Reducer._rebuild_buckets
_broadcast: Any = dist._broadcast_coalesced
_assign: Any = dist._compute_bucket_assignment_by_size
_devices: WeakKeyDictionary[Any, tuple[torch.device, ...]] = WeakKeyDictionary()


class _OnDevices(Mode):
    """Places new floating-point tensors on devices; DDP's integer tensors stay on the host.

    ``buckets``: the number of elements and the device of each bucket, in the order in which they
    are made. Other tensors are on the first one's device.
    """

    def __init__(self, buckets: Sequence[tuple[int, torch.device]]) -> None:
        super().__init__()
        self._device = buckets[0][1]
        self._coming = list(reversed(buckets))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        torch_dispatch = func(*args, **(kwargs or {}))
        if type(torch_dispatch) is Tensor and torch_dispatch.is_floating_point():
            device = self._device
            if (
                self._coming
                and torch_dispatch.numel() == self._coming[-1][0]
                and residence_of(torch_dispatch) is None
            ):
                device = self._coming.pop()[1]
            settle(torch_dispatch, device, "buckets of DDP")
        return torch_dispatch


def _by_device(tensors: Iterable[Tensor]) -> dict[torch.device | None, list[int]]:
    """Return the positions of the tensors on each device, the first one's device first."""
    device: dict[torch.device | None, list[int]] = {}
    for position, tensor in enumerate(tensors):
        residence = residence_of(tensor)
        place = None if residence is None else residence.device
        device.setdefault(place, []).append(position)
    return device


def _broadcast_by_device(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
    """``_broadcast_coalesced``, called for one device at a time: C++ would join all."""
    for positions in _by_device(tensors).values():
        _broadcast(group, [tensors[position] for position in positions], *args, **kwargs)


def _assign_by_device(tensors: Any, limits: Any, sparse: Any = (), *rest: Any, **named: Any) -> Any:
    """``_compute_bucket_assignment_by_size``, with each bucket on one device."""
    places = _by_device(tensors)
    if len(places) < 2:
        return _assign(tensors, limits, sparse, *rest, **named)
    numbers: list[tuple[list[int], int]] = []
    for positions in places.values():
        mine = [tensors[position] for position in positions]
        is_sparse = [sparse[position] for position in positions] if sparse else []
        buckets = _assign(mine, limits, is_sparse, *rest, **named)
        numbers += (
            ([positions[item] for item in bucket], limit)
            for bucket, limit in zip(*buckets, strict=True)
        )
    numbers.sort(key=lambda pair: min(pair[0]))
    return [bucket for bucket, _ in numbers], [limit for _, limit in numbers]


def _init_there(self: Any, parameters: Any, buckets: Any, *args: Any, **kwargs: Any) -> None:
    places = tuple(item for item in _by_device(parameters) if item is not None)
    if not places:
        _init(self, parameters, buckets, *args, **kwargs)
        return
    coming = []
    for bucket in buckets:
        residence = residence_of(parameters[bucket[0]])
        device = None if residence is None else residence.device
        count = sum(parameters[item].numel() for item in bucket)
        coming.append((count, places[0] if device is None else device))
    with _OnDevices(coming):
        _init(self, parameters, buckets, *args, **kwargs)
    _devices[self] = places


def _rebuild_there(self: Any) -> Any:
    places = _devices.get(self)
    if places is None:
        return _rebuild(self)
    if len(places) > 1:
        # C++ would join gradients of several devices, so the first buckets stay.
        return False
    with _OnDevices([(0, places[0])]):
        return _rebuild(self)


def install(patches: Patches) -> None:
    """Let buckets be on the devices of their parameters."""
    in_cxx = {"__init__": _init_there, "_rebuild_buckets": _rebuild_there}
    patches.set_all(_Reducer, {name: unseen(value) for name, value in in_cxx.items()})
    in_cxx = {
        "_broadcast_coalesced": _broadcast_by_device,
        "_compute_bucket_assignment_by_size": _assign_by_device,
    }
    patches.set_all(dist, {name: unseen(value) for name, value in in_cxx.items()})
