"""Operations in dtypes that PyTorch's CPU kernels lack and its GPU kernels have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from kernbench.torch_bridge.base.operations import Operation

_LACKING = re.compile(r"\"\w+\" not implemented for '(\w+)'")
_TYPES = {
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
}
_HALVES = (torch.float16, torch.bfloat16)
_OF_WHOLE_NUMBERS = {
    "aten.histc": (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    **dict.fromkeys(("aten.abs", "aten.trace"), (torch.bool,)),
}
"""The operations that a GPU has for whole numbers and the CPU has not: others, such as a softmax,
are refused by both.

Source: ``dtypesIfCUDA`` beyond ``dtypes`` in PyTorch's database of operations.
"""


def in_wider_numbers(
    operation: Operation, args: Any, kwargs: dict[str, Any], error: NotImplementedError
) -> Any:
    """Redo an operation that lacks its dtype in float32 or float64, and round the result.

    Raises:
        NotImplementedError: It failed for another reason, or it writes into its operands.
    """
    result = _LACKING.match(str(error))
    narrow = _TYPES.get(result[1]) if result else None
    if narrow is None or operation.written:
        raise error
    if narrow not in _HALVES and narrow not in _OF_WHOLE_NUMBERS.get(operation.name, ()):
        raise error
    wide = torch.float32 if narrow in _HALVES else torch.float64

    def cast(source: torch.dtype, target: torch.dtype) -> Any:
        return lambda item: (
            item.to(target) if isinstance(item, Tensor) and item.dtype == source else item
        )

    args, kwargs = tree_map(cast(narrow, wide), (args, kwargs))
    return tree_map(cast(wide, narrow), operation.call(*args, **kwargs))


def with_dtypes_of_gpus(operation: Operation) -> Operation:
    """Return an operation that takes float16 and gives float32, where a GPU's kernel does so.

    Softmax and its gradient: a GPU's kernel reads float16 and writes float32, or the reverse. The
    CPU casts, which no report shows; the numbers are the same.
    """
    if operation.full_name in _FORWARD:
        return replace(operation, call=_forward(operation.call))
    if operation.full_name in _BACKWARD:
        return replace(operation, call=_backward(operation.call))
    return operation


_FORWARD = frozenset({"aten._softmax.default", "aten._log_softmax.default"})
_BACKWARD = frozenset(
    {"aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default"}
)


def _forward(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def cast(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        return call(x.float(), dim, False) if half_to_float else call(x, dim, False)

    return cast


def _backward(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def cast(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
        if input_dtype is torch.float16 and grad.dtype is torch.float32:
            return call(grad, output, dim, torch.float32).half()
        return call(grad, output, dim, input_dtype)

    return cast
