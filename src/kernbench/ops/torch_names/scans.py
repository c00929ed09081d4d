"""Running sums along a dim."""

from __future__ import annotations

import math
from typing import Any

import triton.language as tl

from kernbench.dtypes import as_dtype, int64
from kernbench.ops.base.dims import as_dims, row_walk
from kernbench.ops.base.kernel import index_type, kernel, new_result
from kernbench.ops.base.promotion import compute_dtype
from kernbench.runtime_api import Tensor


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
