"""Softmax and layer norm that read their rows once per pass, as eager frameworks do.

:mod:`kernbench.ops.normalization` keeps a row in TCM. A general kernel that does not know the
length of its rows reads them again for each pass; what that costs depends on how much of them the
caches still have. The passes have a pointer each, so that a caller can say which of them are warm.
"""

from __future__ import annotations

import triton.language as tl

from kernbench.ops.base.kernel import kernel


@kernel
def softmax_in_passes(
    out_ptr, x_ptr, again_ptr, last_ptr, M, N, out_m, out_n, x_m, x_n,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Softmax of rows: a pass for the maximum, one for the sum, one for the result."""
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    at = m * x_m + n * x_n
    low = float("-inf")
    highest = tl.max(tl.load(x_ptr + at, mask=mask, other=low).to(COMPUTE), axis=1)[:, None]
    powers = tl.exp(tl.load(again_ptr + at, mask=mask, other=low).to(COMPUTE) - highest)
    scale = 1.0 / tl.sum(powers, axis=1)[:, None]
    x = tl.load(last_ptr + at, mask=mask, other=low).to(COMPUTE)
    result = tl.exp(x - highest) * scale
    tl.store(out_ptr + m * out_m + n * out_n, result.to(out_ptr.dtype.element_ty), mask=mask)


@kernel
def layer_norm_in_passes(
    out_ptr, x_ptr, again_ptr, weight_ptr, bias_ptr, eps, M, N, out_m, out_n, x_m, x_n,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Layer norm of rows: a pass for mean and variance, one for the result."""
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    at = m * x_m + n * x_n
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(COMPUTE)
    mean = tl.sum(x, axis=1)[:, None] / N
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1)[:, None] / N - mean * mean + eps)
    weight = tl.load(weight_ptr + n, mask=n < N, other=0.0).to(COMPUTE)
    bias = tl.load(bias_ptr + n, mask=n < N, other=0.0).to(COMPUTE)
    again = tl.load(again_ptr + at, mask=mask, other=0.0).to(COMPUTE)
    result = (again - mean) * scale * weight + bias
    tl.store(out_ptr + m * out_m + n * out_n, result.to(out_ptr.dtype.element_ty), mask=mask)
