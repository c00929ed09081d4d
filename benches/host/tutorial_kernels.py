"""Kernels in the manner of Triton's tutorials 01, 02, 04, 05 and 09, for the benches of the host.

Tutorial 03's is in ``tutorial_gemm``, 06's in ``tutorial_attention``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, x + y, mask=mask)


@triton.jit
def softmax(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Rows are shared out over as many programs as run at once."""
    at = tl.arange(0, BLOCK)
    mask = at < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(x_ptr + row * x_stride + at, mask=mask, other=-float("inf"))
        powers = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * out_stride + at, powers / tl.sum(powers, axis=0), mask=mask)


@triton.jit
def seeded_dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    kept = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(kept, x / (1 - p), 0.0), mask=mask)


@triton.jit
def norm_rows(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, N, eps, BLOCK: tl.constexpr
):
    """A row in blocks: once for its mean, once for its variance, once for the result."""
    row = tl.program_id(0)
    x_ptr += row * stride
    out_ptr += row * stride
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        sums += tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / N
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
        x = tl.where(at < N, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mask = at < N
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + at, mask=mask)
        b = tl.load(b_ptr + at, mask=mask)
        tl.store(out_ptr + at, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def norm_backward_rows(  # type: ignore[no-untyped-def]
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, locks_ptr, stride, N,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row's gradient; its part of the weights' goes to one of GROUP sums, each with a lock."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < N
    group = row % GROUP
    lock_ptr = locks_ptr + group
    count_ptr = lock_ptr + GROUP
    dw_ptr += group * N + at
    db_ptr += group * N + at
    x = tl.load(x_ptr + row * stride + at, mask=mask, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride + at, mask=mask, other=0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=mask).to(tl.float32)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    normed = tl.where(mask, (x - mean) * rstd, 0.0)
    scaled = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(normed * scaled, axis=0) / N
    c2 = tl.sum(scaled, axis=0) / N
    tl.store(dx_ptr + row * stride + at, (scaled - (normed * c1 + c2)) * rstd, mask=mask)
    part_w = (dy * normed).to(w.dtype)
    part_b = dy.to(w.dtype)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    if tl.load(count_ptr) == 0:
        tl.atomic_xchg(count_ptr, 1)
    else:
        part_w += tl.load(dw_ptr, mask=mask)
        part_b += tl.load(db_ptr, mask=mask)
    tl.store(dw_ptr, part_w, mask=mask)
    tl.store(db_ptr, part_b, mask=mask)
    # All threads of the program have stored before the lock is given back.
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def norm_backward_columns(  # type: ignore[no-untyped-def]
    part_w_ptr, part_b_ptr, dw_ptr, db_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The weights' gradients from their M sums."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dw = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    db = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, M, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        mask = (rows[:, None] < M) & (columns[None, :] < N)
        at = rows[:, None] * N + columns[None, :]
        dw += tl.load(part_w_ptr + at, mask=mask, other=0.0)
        db += tl.load(part_b_ptr + at, mask=mask, other=0.0)
    tl.store(dw_ptr + columns, tl.sum(dw, axis=0), mask=columns < N)
    tl.store(db_ptr + columns, tl.sum(db, axis=0), mask=columns < N)


@triton.jit
def persistent_matmul(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """As many programs as PEs; each goes on to the next of its tiles."""
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    per_group = G * num_n
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        first = tile // per_group * G
        size = min(num_m - first, G)
        tile_m = first + (tile % per_group) % size
        tile_n = (tile % per_group) // size
        rows = tile_m * BM + tl.arange(0, BM)
        cols = tile_n * BN + tl.arange(0, BN)
        rows = tl.where(rows < M, rows, 0)
        cols = tl.where(cols < N, cols, 0)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            inner = k * BK + tl.arange(0, BK)
            a = tl.load(
                a_ptr + rows[:, None] * K + inner[None, :], mask=inner[None, :] < K, other=0
            )
            b = tl.load(
                b_ptr + inner[:, None] * N + cols[None, :], mask=inner[:, None] < K, other=0
            )
            acc = tl.dot(a, b, acc)
        rows = tile_m * BM + tl.arange(0, BM)
        cols = tile_n * BN + tl.arange(0, BN)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16), mask=mask)
