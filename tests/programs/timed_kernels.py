"""A bench of kernels that are bound by different things."""

import triton
import triton.language as tl

from kernbench import DPPolicy


@triton.jit
def square(a, c, N: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(a + m[:, None] * N + k[None, :])
        sums = tl.dot(left, tl.load(a + k[:, None] * N + n[None, :]), sums)
    tl.store(c + m[:, None] * N + n[None, :], sums.to(tl.float16))


@triton.jit
def copy_columns(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, 128)[:, None] * N
    tl.store(out + rows + at[None, :], tl.load(x + rows + at[None, :]))


@triton.jit
def ragged(x, lengths, BLOCK: tl.constexpr):
    for start in range(0, tl.load(lengths + tl.program_id(0)), BLOCK):
        at = tl.program_id(0) * 4096 + start + tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at) + 1)


def run(torch):
    a = torch.zeros(2048, 2048, dtype="f16")
    square[(16, 16)](a, torch.empty(2048, 2048, dtype="f16"), N=2048, BLOCK=128)
    x = torch.zeros(128, 4096, dp=DPPolicy(num_cubes=1))
    copy_columns[(1024,)](x, torch.empty(128, 4096), N=4096, BLOCK=4)
    ragged[(2,)](torch.zeros(2, 4096), torch.tensor([1024, 4096], dtype="i32"), BLOCK=256)
