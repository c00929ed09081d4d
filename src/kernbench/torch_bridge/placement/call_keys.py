"""Two keys of a call's arguments: what determines the result's shape, and what the time.

The shape follows from the layouts of operands, including strides, on any device. The time of a
plain operation follows from shapes and dtypes on one device, and from strides where a tensor is not
contiguous (of products and convolutions in any case); each call with data looks it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.direct import NATIVE
from kernbench.torch_bridge.base.operations import PLAIN, Operation
from kernbench.torch_bridge.placement.residence import Residence, storage_of

is_meta: Any = torch._C.TensorBase.is_meta.__get__
"""Whether C++ has no data for a tensor, whatever device the program sees."""
_UNKEYED = (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator)


def call_keys(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Return what determines the shape of a result; None if no key can."""
    keys: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            if value.layout is not torch.strided:
                return None
            try:
                keys.append((value.shape, value.stride(), value.dtype, is_meta(value)))
            except RuntimeError:
                # A nested tensor that C++ made: it has as many shapes as parts.
                return None
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


def look_at(
    operation: Operation, args: Sequence[Any], kwargs: dict[str, Any] | None
) -> tuple[Any, ...] | None:
    """Return what determines the time of a call: the operation, the SIP of its tensors, the rest.

    None: it has no tensors, or they are unusual, so that the call needs the general path.
    """
    try:
        if len(args) == 2 and not kwargs:
            first, second = args
            if type(first) in NATIVE and type(second) in NATIVE:
                # Most calls: no need for a list.
                source, beside = storage_of(first)._kernbench, storage_of(second)._kernbench
                sip_id = source.sip_id
                if sip_id < 0 or sip_id != beside.sip_id or source.uses or beside.uses:
                    return None
                key = operation, sip_id, first.shape, second.shape, first.dtype, second.dtype
                if operation.is_by_layout or not (first.is_contiguous() and second.is_contiguous()):
                    return (*key, first.stride(), second.stride())
                return key
        keys: list[Any] = [operation, None]
        look = _look_among(args, keys)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if operation.is_by_layout or not all(tensor.is_contiguous() for tensor in tensors):
            keys += [tensor.stride() for tensor in tensors]
    except (AttributeError, RuntimeError):
        # It is not on a device yet, or has no storage.
        return None
    if look is None or (kwargs and not _name_all(kwargs, keys)):
        return None
    keys[1] = look.sip_id
    return tuple(keys)


def _look_among(values: Sequence[Any], keys: list[Any]) -> Residence | None:
    """Return the residence of the tensors among values; add what affects the time to ``keys``."""
    look: Residence | None = None
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            residence = storage_of(value)._kernbench
            if residence.uses or residence.device is None:
                return None
            keys.append(value.shape)
            keys.append(value.dtype)
            if kind not in NATIVE:
                keys.append(kind)
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
            residence = _look_among(value, keys)
            if residence is None:
                return None
        else:
            return None
        if look is None:
            look = residence
        elif look.sip_id != residence.sip_id:
            return None
    return look


def _name_all(argument: dict[str, Any], keys: list[Any]) -> bool:
    """Add keyword arguments to ``keys`` if all are numbers; return whether they are."""
    for name, value in argument.items():
        kind = type(value)
        if kind in _NUMBERS:
            keys += (name, kind, value)
        elif kind is float:
            keys += (name, float)
        else:
            return False
    return True
