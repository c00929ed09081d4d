"""Gradients that autograd makes for unused results: they are placed with the others.

C++ makes them on the CPU; a ``backward`` in Python may pass them to a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.placement.residence import residence_of, settle_open


def _settle(gradients: Iterable[Any]) -> None:
    tensors = [gradient for gradient in gradients if type(gradient) is Tensor]
    residences = (residence_of(tensor) for tensor in tensors)
    residence = next((residence for residence in residences if residence is not None), None)
    if residence is not None and residence.device is not None:
        for tensor in tensors:
            settle_open(tensor, residence.device)


def _settled(original: Callable[..., Any], is_boxed: bool) -> Callable[..., Any]:
    def apply(self: Any, *gradients: Any) -> Any:
        _settle(gradients[0] if is_boxed else gradients)
        return original(self, *gradients)

    return apply


def _grad(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Inputs may be an iterator, or edges of the graph, which are on no device.
        if not isinstance(inputs, (Tensor, GradientEdge)):
            inputs = tuple(inputs)
        result = original(outputs, inputs, *args, **kwargs)
        value = inputs if isinstance(inputs, tuple) else (inputs,)
        for item, built in zip(value, result, strict=False):
            residence = residence_of(item) if isinstance(item, Tensor) else None
            if residence is not None and residence.device is not None and type(built) is Tensor:
                settle_open(built, residence.device)
        return result

    return grad


def install(patches: Patches) -> None:
    """Let a custom function's ``backward`` get all of its gradients on one device.

    ``torch.autograd.grad`` returns them on the devices of its inputs.
    """
    patches.set(torch.autograd, "grad", _grad(torch.autograd.grad))
    for name, is_boxed in (("apply", False), ("apply_boxed", True)):
        original = getattr(BackwardCFunction, name, None)
        if original is not None:  # Older releases do not have the boxed one.
            patches.set(BackwardCFunction, name, _settled(original, is_boxed))
