"""Sums and maxima along dims, on any strides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import triton
import triton.language as tl

from kernbench.dtypes import DType, int64
from kernbench.errors import UsageError
from kernbench.ops.base.kernel import kernel, new_result, normal_dim
from kernbench.ops.base.layout import block, build_walk
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.ops.elementwise import mul
from kernbench.runtime_api import Tensor


@kernel
def reduce_strided(
    out_ptr, x_ptr, D1, M, R, out_0, out_1, out_m, x_0, x_1, x_m, x_r,
    MAXIMUM: tl.constexpr, EMPTY: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """``out[d0, d1, m] = sum (or max) over r of x[d0, d1, m, r]``, a tile of M per program."""
    d0 = tl.program_id(1) // D1
    d1 = tl.program_id(1) % D1
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = x_ptr + d0 * x_0 + d1 * x_1
    acc = tl.full((BLOCK_M, BLOCK_R), EMPTY, dtype=COMPUTE)
    for first in range(0, R, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        mask = (m[:, None] < M) & (r[None, :] < R)
        x = tl.load(start + m[:, None] * x_m + r[None, :] * x_r, mask=mask, other=EMPTY).to(COMPUTE)
        acc = tl.maximum(acc, x) if MAXIMUM else acc + x
    result = tl.max(acc, axis=1) if MAXIMUM else tl.sum(acc, axis=1)
    out_ptrs = out_ptr + d0 * out_0 + d1 * out_1 + m * out_m
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=m < M)


def sum(x: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return the sum over a dim, several, or all; halves are summed in float32.

    Sums of integers and bools are int64, as in torch.
    """
    dtype = x.dtype if x.dtype.is_floating_point else int64
    return _reduce("sum", x, dim, keepdim, dtype)


def amax(x: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return the largest element over a dim, several, or all.

    Raises:
        UsageError: There is nothing to take the maximum of.
    """
    if math.prod(x.shape) == 0:
        raise UsageError(f"amax of a tensor without elements, shape {tuple(x.shape)}")
    return _reduce("amax", x, dim, keepdim, x.dtype)


def mean(x: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return the mean over a dim, several, or all."""
    require_float("mean", x)
    total = sum(x, dim, keepdim)
    count = math.prod(x.shape) / max(math.prod(total.shape), 1)
    return mul(total, 1.0 / count if count else math.nan)


def _reduce(
    name: str, x: Tensor, dim: int | tuple[int, ...] | None, keepdim: bool, dtype: DType
) -> Tensor:
    given: tuple[int, ...] = tuple(range(len(x.shape))) if dim is None else _as_tuple(dim)
    dims = sorted({normal_dim(name, x, each) for each in given})
    result = x
    for each in reversed(dims):
        result = _reduce_dim(name, result, each, dtype)
    if not dims and result.dtype != dtype:
        result = _reduce_dim(name, x[None], 0, dtype)
        return result[0] if len(result.shape) > len(x.shape) else result
    shape = list(x.shape)
    for each in reversed(dims):
        if keepdim:
            shape[each] = 1
        else:
            del shape[each]
    return result.reshape(tuple(shape))


def _reduce_dim(name: str, x: Tensor, dim: int, dtype: DType) -> Tensor:
    """Return ``x`` reduced along one dim, which is kept with size 1."""
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    out = new_result(shape, dtype, x)
    if math.prod(shape) == 0:
        return out
    rest = [each for each in range(len(shape)) if each != dim]
    walk = build_walk(
        tuple(shape[each] for each in rest),
        tuple(out.stride()[each] for each in rest),
        tuple(x.stride()[each] for each in rest),
    ).padded(3)
    d0, d1, m = walk.shape
    length = x.shape[dim]
    block_r = block(length, 16, 1024)
    block_m = block(m, 1, max(4096 // block_r, 1))
    maximum = name == "amax"
    empty = _lowest(x.dtype) if maximum else 0
    out.context.launch(
        name, reduce_strided, out, x, d1, m, length,
        *walk.strides[0], *walk.strides[1], x.stride()[dim],
        grid=(triton.cdiv(m, block_m), d0 * d1),
        MAXIMUM=maximum, EMPTY=empty, COMPUTE=compute_dtype(x.dtype if maximum else dtype),
        BLOCK_M=block_m, BLOCK_R=block_r,
    )  # fmt: skip
    return out


def _lowest(dtype: DType) -> float | int:
    """Return the smallest value of a dtype."""
    if dtype.is_floating_point:
        return -math.inf
    return 0 if dtype.name == "bool" else int(np.iinfo(dtype.numpy).min)


def _as_tuple(dim: Any) -> tuple[int, ...]:
    return tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
