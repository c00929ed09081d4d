"""What C++ checks, or moves, by the device of a tensor: to it, all are on its CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import MixedDevicesError
from kernbench.torch_bridge.device.tensors import asking, device_of, on_device, replace_function, to
from kernbench.torch_bridge.placement.names import EXECUTING
from kernbench.torch_bridge.placement.residence import settle_open

_grad: Any = torch._C.TensorBase.grad


def _assign(self: Tensor, gradient: Any) -> None:
    """``Tensor.grad = ...``."""
    if isinstance(gradient, Tensor) and not EXECUTING.depth:
        place = device_of(self)
        if on_device(self):
            settle_open(gradient, place)
        if device_of(gradient) != place:
            raise MixedDevicesError(
                "assigned grad has data located on a different device: the tensor is on "
                f"{place}, the gradient on {device_of(gradient)}"
            )
    _grad.__set__(self, gradient)


def _refusing(original: Callable[..., Any], mistake: Callable[[list[Any]], str | None]) -> Any:
    """Return a function that refuses a mistake that its operands make."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        message = None if EXECUTING.depth else mistake([*args, *kwargs.values()])
        if message is not None:
            raise MixedDevicesError(message)
        return original(*args, **kwargs)

    return call


def _of_grid(values: list[Any]) -> str | None:
    tensors = values[0] if isinstance(values[0], (list, tuple)) else values
    places = {device_of(item) for item in tensors if isinstance(item, Tensor)}
    return "meshgrid expects all tensors to have the same device" if len(places) > 1 else None


def _of_quantile(values: list[Any]) -> str | None:
    if not isinstance(values[1], Tensor) or device_of(values[0]) == device_of(values[1]):
        return None
    return "quantile() q tensor must be on the same device as the input tensor"


def _of_split(values: list[Any]) -> str | None:
    if not isinstance(values[1], Tensor) or not on_device(values[1]):
        return None
    place = device_of(values[1])
    return f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {place}"


def _ctc_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss that moves targets to the device of its first operand, and takes lengths."""

    def ctc_loss(values: Tensor, targets: Tensor, *lengths: Any, **kwargs: Any) -> Any:
        targets = to(targets, device_of(values))
        if not any(isinstance(item, Tensor) and on_device(item) for item in lengths[:2]):
            lengths = tuple(x.tolist() if isinstance(x, Tensor) else x for x in lengths)
        return original(values, targets, *lengths, **kwargs)

    return ctc_loss


_MISTAKES = {"quantile": _of_quantile, "nanquantile": _of_quantile, "tensor_split": _of_split}


def install(patches: Patches) -> None:
    """Let these ask for the simulated device. Source: ``TORCH_CHECK`` in ATen's composites."""
    patches.set(Tensor, "grad", property(_grad.__get__, _assign, _grad.__delete__))
    patches.set(torch.functional, "_meshgrid", _refusing(torch.functional._meshgrid, _of_grid))
    replace_function(patches, "ctc_loss", _ctc_loss)
    for name, mistake in _MISTAKES.items():
        replace_function(patches, name, partial(_refusing, mistake=mistake))
        patches.set(Tensor, name, asking(_refusing(getattr(Tensor, name), mistake), name))
