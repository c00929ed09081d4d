"""Legacy names and constructors of tensors: ``torch.cuda.FloatTensor``, ``x.new``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of, is_plain, read_by_host
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, unobserved

_make = torch._C.TensorBase.__new__
_type = Tensor.type
_new = Tensor.new
_NAMES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _TensorType(type):
    """Makes ``isinstance(x, torch.cuda.FloatTensor)`` compare dtype and device."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.is_cuda and value.dtype == cls.dtype

    def __call__(cls, *value: Any, device: Any = None) -> Tensor:
        device = DEVICE_TYPE if device is None else device
        if len(value) == 1 and not isinstance(value[0], int):
            return torch.as_tensor(value[0], dtype=cls.dtype, device=device)
        sizes = [int(item) for item in value] or [0]
        return torch.empty(sizes, dtype=cls.dtype, device=device)


_TYPES: dict[str, Any] = {
    name: _TensorType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
    for name, dtype in _NAMES.items()
}
_BY_DTYPE = {dtype: name for name, dtype in _NAMES.items()}


def _type_of(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """``Tensor.type``: the name of a tensor's type, or the tensor converted to another."""
    if dtype is None:
        name = _BY_DTYPE.get(self.dtype)
        on_device = is_plain(self) and device_of(self).type == DEVICE_TYPE
        return f"torch.cuda.{name}" if on_device and name is not None else _type(self)
    if isinstance(dtype, str):
        place, _, name = dtype.rpartition(".")
        if place == "torch.cuda" and name in _TYPES:
            dtype = _TYPES[name]
        elif place == "torch" and name in _NAMES:
            return self.to("cpu", _NAMES[name], non_blocking)
    if isinstance(dtype, _TensorType):
        device = self.device if self.is_cuda else DEVICE_TYPE
        return self.to(device, dtype.dtype, non_blocking)
    return _type(self, dtype, non_blocking, **kwargs)


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    return self.to(other.device, other.dtype)


def _make_new(self: Tensor, *value: Any, device: Any = None) -> Tensor:
    """``Tensor.new``: an uninitialized tensor, or one of given numbers, on the tensor's device."""
    place = device_of(self)
    if not is_plain(self) or place.type != DEVICE_TYPE:
        tensor: Tensor = _new(self, *value, **({} if device is None else {"device": device}))
        return tensor
    device = place if device is None else device
    if self.layout is torch.sparse_coo:
        # Without a size it has that of its indices.
        parts, size = value[:2], value[2:] or ((0,) if not value else ())
        return torch.sparse_coo_tensor(*parts, *size, dtype=self.dtype, device=device)
    if len(value) == 1 and not isinstance(value[0], (int, torch.Size)):
        return torch.as_tensor(value[0], dtype=self.dtype, device=device)
    sizes = value[0] if value and isinstance(value[0], torch.Size) else (value or (0,))
    return torch.empty(tuple(sizes), dtype=self.dtype, device=device)


# PyTorch's compiler refuses a replacement that names its parameters.
def _make_tensor(*value: Any, **kwargs: Any) -> Tensor:
    """``Tensor.__new__``: C++ makes subclass instances only from tensors that no mode has seen."""
    if value[0] is Tensor:
        return _make(*map(read_by_host, value), **kwargs)
    with unobserved():
        return _make(*value, **kwargs)


def install(patches: Patches) -> None:
    """Let legacy names refer to simulated devices."""
    patches.set(Tensor, "__new__", staticmethod(_make_tensor))
    patches.set_all(Tensor, type=_type_of, type_as=_type_as, new=_make_new)
    patches.set_all(torch.cuda, _TYPES)
