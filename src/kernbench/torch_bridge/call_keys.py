"""What of the arguments of an operation decides its shapes and its time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

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
