"""A matrix product that is tuned by modeled time, with options of two vendors' compilers."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()

CONFIGS = [
    triton.Config({"BM": 32, "BN": 32, "BK": 32}, num_stages=2, num_warps=2),
    triton.Config({"BM": 64, "BN": 128, "BK": 32}, num_stages=3, num_warps=8),
    triton.Config({"BM": 64, "BN": 64, "BK": 32, "waves_per_eu": 2}, num_warps=4),
    triton.Config({"BM": 64, "BN": 64, "BK": 64, "matrix_instr_nonkdim": 16}, num_warps=4),
    # Fits in no PE: tuning must pass it by.
    triton.Config({"BM": 1024, "BN": 1024, "BK": 128}, num_stages=4),
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, lead_a, lead_b, lead_c,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(tl.cdiv(K, BK)):
        left = K - start * BK
        a_mask, b_mask = k[None, :] < left, k[:, None] < left
        a = tl.load(
            a_ptr + (m[:, None] % M) * lead_a + start * BK + k[None, :], mask=a_mask, other=0.0
        )
        b = tl.load(
            b_ptr + (start * BK + k[:, None]) * lead_b + n[None, :] % N, mask=b_mask, other=0.0
        )
        total = tl.dot(a, b, total)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptr + m[:, None] * lead_c + n[None, :], total.to(tl.float16), mask=inside)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (M, K), (_, N) = a.shape, b.shape
    c = torch.empty((M, N), device=a.device, dtype=torch.float16)

    def grid(meta):
        return triton.cdiv(M, meta["BM"]), triton.cdiv(N, meta["BN"])

    product_kernel[grid](a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0))
    return c


torch.manual_seed(0)
a = torch.rand((300, 200), device=DEVICE, dtype=torch.float16) - 0.5
b = torch.rand((200, 260), device=DEVICE, dtype=torch.float16) - 0.5
torch.testing.assert_close(product(a, b), torch.matmul(a, b), atol=1e-2, rtol=0)
assert product_kernel.best_config in CONFIGS[:4]

large = torch.empty((4096, 4096), device=DEVICE, dtype=torch.float16)
ms = triton.testing.do_bench(lambda: product(large, large))
print(f"4096: {2 * 4096**3 * 1e-9 / ms:.0f} TFLOP/s with {product_kernel.best_config}")
print("all close")
