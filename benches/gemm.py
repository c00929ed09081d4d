"""How close does a tutorial GEMM come to the roofline of one device, and which tile is best?

C[M, N] = A[M, K] @ B[K, N] with the kernel of Triton's tutorial 03, on one SIP of ahbm. Try other
shapes and tiles (``--param block_m=256 --param num_stages=2``), another machine (``--machine
a100-sxm-80g``), or only the time (``--no-data``).
"""

from typing import Literal

import numpy as np
import triton
import triton.language as tl

from kernbench.runtime_api import RuntimeContext


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    # Programs go through C in bands of GROUP_M tiles, so that neighbours share tiles of A and B.
    pid = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first_m = pid // (GROUP_M * num_n) * GROUP_M
    band = min(num_m - first_m, GROUP_M)
    m = (first_m + pid % (GROUP_M * num_n) % band) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (pid % (GROUP_M * num_n) // band) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)

    a_ptrs = a_ptr + (m[:, None] % M) * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + (n[None, :] % N) * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=k[None, :] < K - step * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=k[:, None] < K - step * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    c_ptrs = c_ptr + m[:, None] * stride_cm + n[None, :] * stride_cn
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


def run(
    torch: RuntimeContext,
    m: int = 1024,
    n: int = 1024,
    k: int = 1024,
    dtype: Literal["float16", "bfloat16", "float32"] = "float16",
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 64,
    group_m: int = 8,
    num_stages: int = 3,
) -> None:
    """Multiply two random matrices and compare with numpy."""
    a = torch.randn(m, k, dtype=dtype, name="a")
    b = torch.randn(k, n, dtype=dtype, name="b")
    c = torch.empty((m, n), dtype=dtype, name="c")
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    matmul_kernel[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_m, num_stages=num_stages,
    )  # fmt: skip
    if torch.has_data:
        expected = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)
        # One unit in the last place of the result, and what the order of a long sum may change.
        torch.testing.assert_close(
            c, expected, rtol=2e-2 if dtype == "bfloat16" else 2e-3, atol=1e-2
        )
