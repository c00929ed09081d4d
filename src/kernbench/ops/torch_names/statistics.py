"""Norms, variances and standard deviations along dims."""

from __future__ import annotations

import math
from typing import Any

import triton.language as tl

from kernbench.dtypes import as_dtype, int64
from kernbench.errors import UsageError
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.kernel import index_type, kernel, new_result
from kernbench.ops.base.layout import Dims, as_dims, kept_shape, row_walk
from kernbench.ops.base.promotion import compute_dtype, require_float, result_dtype
from kernbench.ops.elementwise import add, eq, le, lt, maximum, minimum, mul, ne, sub
from kernbench.ops.reductions import reduce_dims
from kernbench.ops.torch_names.extremes import all, amax, amin
from kernbench.ops.torch_names.functions import abs
from kernbench.runtime_api import Tensor


@kernel
def variance_strided(
    out_ptr, x_ptr, correction, D1, M, R, out_0, out_1, out_m, x_0, x_1, x_m, x_r,
    FINISH: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """``out[d0, d1, m]``: the variance of ``x[d0, d1, m, :]``; it is read twice."""
    d0 = tl.program_id(1) // D1
    d1 = tl.program_id(1) % D1
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = x_ptr + d0 * x_0 + d1 * x_1
    acc = tl.full((BLOCK_M, BLOCK_R), 0, dtype=COMPUTE)
    for first in range(0, R, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        mask = (m[:, None] < M) & (r[None, :] < R)
        acc += tl.load(start + m[:, None] * x_m + r[None, :] * x_r, mask=mask, other=0).to(COMPUTE)
    mean = tl.sum(acc, axis=1) / R
    squares = tl.full((BLOCK_M, BLOCK_R), 0, dtype=COMPUTE)
    for first in range(0, R, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        mask = (m[:, None] < M) & (r[None, :] < R)
        x = tl.load(start + m[:, None] * x_m + r[None, :] * x_r, mask=mask, other=0).to(COMPUTE)
        far = tl.where(mask, x - mean[:, None], 0)
        squares += far * far
    free = tl.maximum(R - correction, 0).to(COMPUTE)
    result = FINISH(tl.sum(squares, axis=1) / free)
    out_ptrs = out_ptr + d0 * out_0 + d1 * out_1 + m * out_m
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=m < M)


def norm(x: Tensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return the p-norm of the elements over a dim, several, or all; ``"fro"`` is 2.

    ``p`` may be infinite (largest magnitude), minus infinite (smallest), or 0 (how many are not 0).
    """
    require_float("norm", x)
    power = 2.0 if p in ("fro", None) else p
    if isinstance(power, bool) or not isinstance(power, int | float) or math.isnan(power):
        raise UsageError(f"norm: p must be 'fro' or a number, but got {p!r}")
    if math.isinf(power):
        return (amax if power > 0 else amin)(abs(x), dim, keepdim)
    if power == 0:
        return reduce_dims("norm", x, dim, keepdim, x.dtype, map=fn.is_not_zero)
    if power == 1:
        return reduce_dims("norm", x, dim, keepdim, x.dtype, map=fn.magnitude)
    if power == 2:
        return reduce_dims("norm", x, dim, keepdim, x.dtype, map=fn.squared, finish=fn.root)
    number = float(power)
    if number < 0:
        raise UsageError(f"norm: p must be 0 or more, or minus infinity, but got {p!r}")
    return reduce_dims(
        "norm", x, dim, keepdim, x.dtype, map=fn.magnitude_power, finish=fn.root_of, number=number
    )


def var(x: Tensor, dim: Dims = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Return the variance over a dim, several, or all; ``correction=0`` is of all there is."""
    return _variance("var", x, dim, correction, keepdim, fn.identity)


def std(x: Tensor, dim: Dims = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Return the standard deviation over a dim, several, or all, with Bessel's correction of 1."""
    return _variance("std", x, dim, correction, keepdim, fn.sqrt)


def _variance(
    name: str, x: Tensor, dim: Dims, correction: float, keepdim: bool, finish: Any
) -> Tensor:
    require_float(name, x)
    dims = as_dims(name, x, dim)
    shape = kept_shape(x, dims, keepdim)
    rest = [index for index in range(len(x.shape)) if index not in dims]
    rows = x.permute([*rest, *dims]).reshape((*(x.shape[number] for number in rest), -1))
    out = new_result((*rows.shape[:-1], 1), x.dtype, x)
    if math.prod(out.shape):
        grid, numbers, blocks = row_walk(rows, len(rows.shape) - 1, out)
        out.context.launch(
            name, variance_strided, out, rows, correction, *numbers, grid=grid, FINISH=finish,
            COMPUTE=compute_dtype(x.dtype), **blocks,
        )  # fmt: skip
    return out.reshape(shape)


@kernel
def cumsum_strided(
    out_ptr, x_ptr, out_r, D1, M, R, out_0, out_1, out_m, x_0, x_1, x_m, x_r,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``out[d0, d1, m, r] = sum of x[d0, d1, m, :r + 1]``, a tile of M per program."""
    d0 = tl.program_id(1).to(INDEX) // D1
    d1 = tl.program_id(1).to(INDEX) % D1
    m = tl.program_id(0).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = x_ptr + d0 * x_0 + d1 * x_1
    out_start = out_ptr + d0 * out_0 + d1 * out_1
    before = tl.full((BLOCK_M,), 0, dtype=COMPUTE)
    for first in range(0, R, BLOCK_R):
        r = (first + tl.arange(0, BLOCK_R)).to(INDEX)
        mask = (m[:, None] < M) & (r[None, :] < R)
        x = tl.load(start + m[:, None] * x_m + r[None, :] * x_r, mask=mask, other=0).to(COMPUTE)
        sums = tl.cumsum(x, axis=1) + before[:, None]
        before += tl.sum(x, axis=1)
        out_ptrs = out_start + m[:, None] * out_m + r[None, :] * out_r
        tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=mask)


def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Return the sums of all elements up to each one along ``dim``; of integers they are int64."""
    if dtype is not None:
        x = x.to(dtype)
    result = x.dtype if x.dtype.is_floating_point else int64
    shape = tuple(x.shape)
    (at,) = as_dims("cumsum", x, dim) or (0,)
    x = x if shape else x[None]
    out = new_result(tuple(x.shape), result if dtype is None else as_dtype(dtype), x)
    if math.prod(x.shape):
        grid, numbers, blocks = row_walk(x, at, out.narrow(at, 0, 1))
        out.context.launch(
            "cumsum", cumsum_strided, out, x, out.stride()[at], *numbers, grid=grid,
            COMPUTE=compute_dtype(out.dtype), INDEX=index_type(out, x), **blocks,
        )  # fmt: skip
    return out.reshape(shape)


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
