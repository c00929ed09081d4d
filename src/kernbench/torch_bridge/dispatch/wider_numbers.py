"""Operations in dtypes that PyTorch's GPU kernels have and its CPU kernels lack, or are slow in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

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

_WITHOUT_HALVES = re.compile(
    r"aten\.(_?linalg_|_?cholesky|geqrf|ormqr|_?lu_|triangular_solve|_pdist_|polar|_ctc_loss)"
)
"""Operations that a GPU does not have in halves either.

Source: ``dtypesIfCUDA`` of PyTorch's database of operations; cuSOLVER, MAGMA and the kernels of the
others take float32 and float64.
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
    if narrow in _HALVES and _WITHOUT_HALVES.match(operation.name):
        raise error
    if narrow not in _HALVES and narrow not in _OF_WHOLE_NUMBERS.get(operation.name, ()):
        raise error
    wide = torch.float32 if narrow in _HALVES else torch.float64
    return _rounded(operation.call, narrow, wide, args, kwargs)


def _rounded(
    call: Callable[..., Any], narrow: torch.dtype, wide: torch.dtype, args: Any, kwargs: Any
) -> Any:
    """Call an operation with wide numbers in place of narrow ones, and round its results."""

    def cast(source: torch.dtype, target: torch.dtype) -> Any:
        def converted(item: Any) -> Any:
            if isinstance(item, Tensor) and item.dtype == source:
                return item.to(target)
            return target if item is source else item

        return converted

    args, kwargs = tree_map(cast(narrow, wide), (args, kwargs))
    return tree_map(cast(wide, narrow), call(*args, **kwargs))


def with_dtypes_of_gpus(operation: Operation) -> Operation:
    """Return an operation whose numbers are as a GPU's kernel has them, in dtypes that it takes.

    Softmax and its gradient: a GPU's kernel reads float16 and writes float32, or the reverse. The
    CPU casts, which no report shows; the numbers are the same. Products add up in float32 and round
    once, by whatever kernel the CPU has: without one for halves that takes 10 to 100 times as long.
    """
    if operation.full_name in _PRODUCTS and _SLOW_HALVES:
        return replace(operation, call=partial(_in_float32, operation.call))
    if operation.full_name in _FORWARD:
        return replace(operation, call=partial(_forward, operation.call))
    if operation.full_name in _BACKWARD:
        return replace(operation, call=partial(_backward, operation.call))
    return operation


_PRODUCTS = frozenset(
    f"aten.{name}.{overload}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution")
    for overload in ("default", "out")
) | {"aten.convolution_backward.default"}
_SLOW_HALVES = frozenset(
    dtype
    for dtype, is_fast in (
        (torch.bfloat16, torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        (torch.float16, torch.ops.mkldnn._is_mkldnn_fp16_supported()),
    )
    if not is_fast
)
"""Halves that this CPU's library multiplies element by element."""
_FORWARD = frozenset({"aten._softmax.default", "aten._log_softmax.default"})
_BACKWARD = frozenset(
    {"aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default"}
)


def _in_float32(call: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Call a product of halves alone as one of float32; the call refuses dtypes that are mixed."""
    if x.dtype not in _SLOW_HALVES or _dtypes(x, args, kwargs) != {x.dtype}:
        return call(x, *args, **kwargs)
    result = _rounded(call, x.dtype, torch.float32, (x, *args), kwargs)
    out = kwargs.get("out")
    return result if out is None else out.copy_(result)


def _dtypes(*args: Any) -> set[torch.dtype]:
    """Return the dtypes that are in arguments, but for that of the ends of groups."""
    items = (getattr(item, "dtype", item) for item in tree_leaves(args))
    return {item for item in items if isinstance(item, torch.dtype)} - {torch.int32}


def _forward(call: Callable[..., Tensor], x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return call(x.float(), dim, False) if half_to_float else call(x, dim, False)


def _backward(
    call: Callable[..., Tensor], grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    if input_dtype is torch.float16 and grad.dtype is torch.float32:
        return call(grad, output, dim, torch.float32).half()
    return call(grad, output, dim, input_dtype)
