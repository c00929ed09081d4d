"""A vector times a matrix on the vector engine: what libraries use where C has one row.

A tile of a matrix engine has 16 rows or more, of which a single row fills one. Here programs hold
columns of B only, multiply them by elements of A, and sum over K once, at the end.
"""

from __future__ import annotations

import triton.language as tl

from kernbench.ops.base.kernel import kernel


@kernel
def gemv_tiles(
    a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K, steps,
    a_m, a_k, b_k, b_n, bias_n, c_split, c_m, c_n,
    ACTIVATION: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``C[s] = activation(A[:, part s] @ B[part s, :] + bias)``, part ``s = program_id(1)`` of K.

    Each program has BLOCK_N columns of one row. It keeps a sum per row of its tile of B, so that
    programs reduce across rows once. A bias or an activation goes with a single part.
    """
    num_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    m = pid // num_n
    n = pid % num_n * BLOCK_N + tl.arange(0, BLOCK_N)
    first_k = tl.program_id(1) * steps * BLOCK_K
    k = tl.arange(0, BLOCK_K)

    a_ptrs = a_ptr + m * a_m + (first_k + k) * a_k
    b_ptrs = b_ptr + (first_k + k[:, None]) * b_k + n[None, :] * b_n
    acc = tl.zeros((BLOCK_K, BLOCK_N), dtype=ACC)
    for step in tl.range(0, steps, num_stages=STAGES):
        left = K - first_k - step * BLOCK_K
        a = tl.load(a_ptrs, mask=k < left, other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n[None, :] < N), other=0.0)
        acc += a.to(ACC)[:, None] * b.to(ACC)
        a_ptrs += BLOCK_K * a_k
        b_ptrs += BLOCK_K * b_k
    row = tl.sum(acc, axis=0)
    if bias_ptr is not None:
        row += tl.load(bias_ptr + n * bias_n, mask=n < N, other=0.0).to(ACC)
    if ACTIVATION is not None:
        row = ACTIVATION(row)
    c = c_ptr + tl.program_id(1) * c_split + m * c_m + n * c_n
    tl.store(c, row.to(c_ptr.dtype.element_ty), mask=n < N)
