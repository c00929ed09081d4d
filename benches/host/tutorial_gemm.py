"""The float16 GEMM of Triton's tutorial 03, for the benches that replay and interpret it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    per_group = G * num_n
    first = pid // per_group * G
    size = min(num_m - first, G)
    pid_m = first + (pid % per_group) % size
    pid_n = (pid % per_group) // size
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    cols = (pid_n * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    a_at = a_ptr + rows[:, None] * K + inner[None, :]
    b_at = b_ptr + inner[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_at, mask=inner[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_at, mask=inner[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BK
        b_at += BK * N
    out_m = pid_m * BM + tl.arange(0, BM)
    out_n = pid_n * BN + tl.arange(0, BN)
    c_at = c_ptr + N * out_m[:, None] + out_n[None, :]
    tl.store(c_at, acc.to(tl.float16), mask=(out_m[:, None] < M) & (out_n[None, :] < N))
