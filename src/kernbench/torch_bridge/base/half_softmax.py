"""Softmax from float16 to float32 as one operation, and its gradient, which the CPU refuses.

A GPU's kernel reads float16 and writes float32; the gradient reads float32 and writes float16. The
CPU computes them here with casts of their own, which no report shows: the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def calls_of(full_name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what executes an overload for all dtypes of a GPU, given PyTorch's own call."""
    if full_name in _FORWARD:
        return _forward(call)
    return _backward(call) if full_name in _BACKWARD else call


_FORWARD = frozenset({"aten._softmax.default", "aten._log_softmax.default"})
_BACKWARD = frozenset(
    {"aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default"}
)


def _forward(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        return call(x.float(), dim, False) if half_to_float else call(x, dim, False)

    return made


def _backward(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
        if input_dtype is torch.float16 and grad.dtype is torch.float32:
            return call(grad, output, dim, torch.float32).half()
        return call(grad, output, dim, input_dtype)

    return made
