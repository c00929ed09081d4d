"""How the kernels of this package are compiled, and where their results go."""

from __future__ import annotations

import inspect
from typing import Any

import triton

from kernbench.dtypes import DType
from kernbench.errors import UsageError
from kernbench.runtime_api import Tensor


def kernel(function: Any) -> Any:
    """Decorate a kernel that is compiled once per dtype, whatever its sizes and strides are.

    Triton would compile again for each pattern of arguments that are 1 or multiples of 16. That
    lets a GPU's compiler use wide accesses; here it would only cost compilations.
    """
    runtime = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if "constexpr" not in str(parameter.annotation)
    ]
    return triton.jit(do_not_specialize=runtime)(function)


def new_result(shape: tuple[int, ...], dtype: DType, beside: Tensor) -> Tensor:
    """Return a tensor for a result, on the SIP of the operand ``beside``.

    It is laid over the SIP's cubes and PEs as that operand is, where the shapes agree.
    """
    dp = beside.dp if tuple(beside.shape) == shape else None
    return beside.context.empty(shape, dtype=dtype, dp=dp, device=beside.device)


def require_dims(what: str, tensor: Tensor, least: int) -> None:
    """Refuse a tensor with fewer dims.

    Raises:
        UsageError: It has fewer.
    """
    if len(tensor.shape) < least:
        raise UsageError(
            f"{what} needs a tensor of at least {least} dims, but got shape {tuple(tensor.shape)}"
        )


def normal_dim(what: str, tensor: Tensor, dim: int) -> int:
    """Return ``dim`` counted from the front.

    Raises:
        UsageError: The tensor has no such dim.
    """
    num_dims = len(tensor.shape)
    if not -num_dims <= dim < num_dims:
        raise UsageError(
            f"{what}: dim {dim} does not exist in a tensor of shape {tuple(tensor.shape)}"
        )
    return dim % num_dims
