"""Sums along dims, and what is made of sums, on any strides."""

from __future__ import annotations

import math
from typing import Any

import triton.language as tl

from kernbench.dtypes import DType, as_dtype, float32, int64
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.kernel import index_type, kernel, new_result
from kernbench.ops.base.layout import Dims, as_dims, kept_shape, row_walk
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.runtime_api import Tensor


@kernel
def reduce_strided(
    out_ptr, x_ptr, number, D1, M, R, out_0, out_1, out_m, x_0, x_1, x_m, x_r,
    MAP: tl.constexpr, FINISH: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``out[d0, d1, m] = FINISH(sum over r of MAP(x[d0, d1, m, r]))``, a tile of M per program."""
    d0 = tl.program_id(1).to(INDEX) // D1
    d1 = tl.program_id(1).to(INDEX) % D1
    m = tl.program_id(0).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = x_ptr + d0 * x_0 + d1 * x_1
    acc = tl.full((BLOCK_M, BLOCK_R), 0, dtype=COMPUTE)
    for first in range(0, R, BLOCK_R):
        r = (first + tl.arange(0, BLOCK_R)).to(INDEX)
        mask = (m[:, None] < M) & (r[None, :] < R)
        x = tl.load(start + m[:, None] * x_m + r[None, :] * x_r, mask=mask, other=0).to(COMPUTE)
        # What is no element maps to 0 in every MAP.
        acc += MAP(x, number)
    result = FINISH(tl.sum(acc, axis=1), number)
    out_ptrs = out_ptr + d0 * out_0 + d1 * out_1 + m * out_m
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=m < M)


def sum(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the sum over a dim, several, or all; halves are summed in float32.

    Sums of integers and bools are int64, as in torch.
    """
    if dtype is not None and as_dtype(dtype) != x.dtype:
        x = x.to(dtype)
    result = x.dtype if x.dtype.is_floating_point else int64
    return reduce_dims("sum", x, dim, keepdim, result if dtype is None else as_dtype(dtype))


def mean(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the mean over a dim, several, or all."""
    if dtype is not None:
        x = x.to(dtype)
    require_float("mean", x)
    count = math.prod(x.shape[number] for number in as_dims("mean", x, dim))
    return reduce_dims("mean", x, dim, keepdim, x.dtype, finish=fn.share_of, number=count)


def reduce_dims(
    name: str,
    x: Tensor,
    dim: Dims,
    keepdim: bool,
    dtype: DType,
    *,
    map: Any = fn.first_of,
    finish: Any = fn.first_of,
    number: float = 0,
) -> Tensor:
    """Reduce dim by dim: the first launch maps, the last one finishes; between, halves are wide."""
    dims = as_dims(name, x, dim)
    shape = kept_shape(x, dims, keepdim)
    result = x
    if not dims:
        result, dims = x[None], (0,)
    wide = float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
    for item in reversed(dims):
        is_last = item == dims[0]
        result = _reduce_dim(
            name, result, item, dtype if is_last else wide,
            map, finish if is_last else fn.first_of, number,
        )  # fmt: skip
        map = fn.first_of
    return result.reshape(shape)


def _reduce_dim(
    name: str, x: Tensor, dim: int, dtype: DType, map: Any, finish: Any, number: float
) -> Tensor:
    """Return ``x`` reduced along one dim, which is kept with size 1."""
    out = new_result((*x.shape[:dim], 1, *x.shape[dim + 1 :]), dtype, x)
    if math.prod(out.shape) == 0:
        return out
    grid, numbers, blocks = row_walk(x, dim, out)
    out.context.launch(
        name, reduce_strided, out, x, number, *numbers, grid=grid, MAP=map, FINISH=finish,
        COMPUTE=compute_dtype(dtype), INDEX=index_type(out, x), **blocks,
    )  # fmt: skip
    return out
