"""What of the arguments of an operation decides its shapes and its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.device.residence import Residence, storage_of
from kernbench.torch_bridge.operations import PLAIN

is_meta: Any = torch._C.TensorBase.is_meta.__get__
"""Whether C++ has no data for a tensor, wherever the program sees it."""
_UNKEYED = (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator)


def call_keys(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Return what decides the shape of a result, None if that cannot be said."""
    keys: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            if value.layout is not torch.strided:
                return None
            keys.append((value.shape, value.stride(), value.dtype, is_meta(value)))
        elif kind is float:
            keys.append(float)
        elif kind is list or kind is tuple:
            nested = call_keys(value)
            if nested is None:
                return None
            keys.append(nested)
        elif isinstance(value, _UNKEYED):
            return None
        else:
            keys.append((kind, value))
    return tuple(keys)


_NUMBERS = frozenset({int, bool, str, type(None), torch.dtype, torch.memory_format, torch.layout})


def look_at(values: Sequence[Any], keys: list[Any]) -> Residence | None:
    """Return where the tensors among values are, and add to ``keys`` what decides the time.

    None: there is none, or something is unusual about them, so that a closer look is needed.
    """
    found: Residence | None = None
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            try:
                residence = getattr(storage_of(value), "_kernbench", None)
            except (NotImplementedError, RuntimeError):
                return None
            if residence is None or residence.uses or residence.device is None:
                return None
            keys.append(value.shape)
            keys.append(value.dtype)
        elif kind in _NUMBERS:
            # True is equal to 1.
            keys.append((bool, value) if kind is bool else value)
            continue
        elif kind is float:
            keys.append(float)
            continue
        elif kind is list or kind is tuple:
            keys.append(len(value))
            if not value or type(value[0]) in _NUMBERS:
                keys.extend(value)
                continue
            residence = look_at(value, keys)
            if residence is None:
                return None
        else:
            return None
        if found is None:
            found = residence
        elif found.sip_id != residence.sip_id:
            return None
    return found


def name_all(given: dict[str, Any], keys: list[Any]) -> bool:
    """Add named numbers to ``keys``; return whether they are nothing else."""
    for name, value in given.items():
        kind = type(value)
        if kind in _NUMBERS:
            keys += (name, kind, value)
        elif kind is float:
            keys += (name, float)
        else:
            return False
    return True
