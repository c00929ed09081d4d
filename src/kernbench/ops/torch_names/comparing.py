"""Whether tensors are equal, or close: one answer for all of their elements."""

from __future__ import annotations

import math

from kernbench.ops.base.promotion import result_dtype
from kernbench.ops.elementwise import add, eq, le, lt, maximum, minimum, mul, ne, sub
from kernbench.ops.torch_names.extremes import all
from kernbench.ops.torch_names.functions import abs
from kernbench.runtime_api import Tensor


def isclose(
    a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return where ``|a - b| <= atol + rtol * |b|``, or both are equal (infinite, say)."""
    close = eq(a, b)
    if result_dtype(a, b).is_floating_point:
        away = abs(sub(a, b))
        near = minimum(le(away, add(mul(abs(b), rtol), atol)), lt(away, math.inf))
        close = maximum(close, near)
        if equal_nan:
            close = maximum(close, minimum(ne(a, a), ne(b, b)))
    elif rtol or atol:
        near = le(abs(sub(a, b)), add(mul(abs(b), rtol), atol)) if a.dtype.name != "bool" else close
        close = maximum(close, near)
    return close


def allclose(
    a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether :func:`isclose` holds for all elements: a host read of one of them."""
    return bool(all(isclose(a, b, rtol, atol, equal_nan)).item())


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same elements: a host read of one."""
    return tuple(a.shape) == tuple(b.shape) and bool(all(eq(a, b)).item())
