"""What inputs are filled with and how they lie in memory, besides what a task draws."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch
from torch import Tensor

DRAWN, ITS_OWN = "drawn", "its own"


def begin_random_numbers() -> None:
    """Have random numbers begin as they do for whoever else calls this, on host and device."""
    # torch.manual_seed asks back ends that are not there, too, which takes milliseconds.
    torch.default_generator.manual_seed(0)
    torch.cuda.manual_seed_all(0)


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    """Return a tensor times a factor, or by less where its type has not the range for it.

    Squares of most of what is huge then are beyond float16, as a sum in float32 bears them.
    """
    most = torch.finfo(tensor.dtype).max
    factor = min(max(factor, most**-0.375), 2 * math.sqrt(most))
    # PyTorch does not multiply numbers of 8 bits.
    wide = tensor if tensor.itemsize > 1 else tensor.float()
    return (wide * factor).to(tensor.dtype)


def _signed(tensor: Tensor) -> Tensor:
    """Return a tensor that is nowhere negative with about half of its signs turned."""
    host = tensor.cpu().float()
    if (host < 0).any():
        return tensor
    turned = torch.rand(host.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return torch.where(turned, -host, host).to(tensor.dtype).to(tensor.device)


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "huge": lambda item: _scaled(item, 1e4),
    "tiny": lambda item: _scaled(item, 1e-6),
    "constant": torch.ones_like,
    "signed": _signed,
}
"""What numbers are replaced by besides. What a reference itself makes infinite is not asked for."""
_EVERY = 61
"""Of so many elements one is special: a prime, so that it falls on any place of a row."""


def _sprinkled(tensor: Tensor, *values: float) -> Tensor:
    host = tensor.cpu().clone(memory_format=torch.contiguous_format)
    flat = host.view(-1)
    for index, value in enumerate(values):
        flat[(index + 1) * flat.numel() // 3 % _EVERY :: _EVERY * len(values)] = value
    return on_device(host)


def _strided(tensor: Tensor) -> Tensor:
    """Return a copy whose last two dimensions are swapped in memory, or one with gaps."""
    if tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = torch.zeros(2 * tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return wide[::2].view(tensor.shape).copy_(tensor) if tensor.dim() else tensor


BESIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "infinite": lambda item: _sprinkled(item, math.inf, -math.inf),
    "nan": lambda item: _sprinkled(item, math.nan),
    "strided": _strided,
}
"""What a candidate may get wrong unless the task asks for it; that it does is remarked."""


def on_device(tensor: Tensor) -> Tensor:
    """Return a copy on the device that lies in memory as the tensor does.

    A dimension that repeats one element (of ``expand``) is laid out.
    """
    return _laid(tensor, "cuda")


class SentTensor:
    """A tensor as it is sent to another process: its bytes, and how they lie in memory.

    PyTorch's own pickles read no types of 8 bits where a process is simulated.
    """

    def __init__(self, tensor: Tensor) -> None:
        host = _laid(tensor, "cpu")
        self._dtype, self._size, self._stride = host.dtype, tuple(host.shape), host.stride()
        place = (ctypes.c_char * (_reach(host) if host.numel() else 0)).from_address
        self._data = bytearray(place(host.data_ptr()))

    def on_host(self) -> Tensor:
        """Return it in the calling process, in the memory that was sent."""
        if not self._data:
            return torch.empty_strided(self._size, self._stride, dtype=self._dtype)
        flat = torch.frombuffer(self._data, dtype=self._dtype)
        return flat.as_strided(self._size, self._stride)


def _reach(tensor: Tensor) -> int:
    """Return how many bytes lie from a tensor's first element to the end of its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return int((last + 1) * tensor.itemsize)


def _laid(tensor: Tensor, device: str) -> Tensor:
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.is_contiguous() or any(size > 1 and not stride for size, stride in strides):
        return tensor.to(device)
    place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return place.copy_(tensor)
