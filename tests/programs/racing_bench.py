"""Programs of a kernel read what their neighbour writes; of one value they make NaN."""

import triton
import triton.language as tl


@triton.jit
def shift(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at + 1, mask=at + 1 < n, other=0.0)
    tl.store(x_ptr + at, x / x, mask=at < n)


def run(torch, programs: int = 2, value: float = 1.0):
    x = torch.full((128,), value, name="x")
    shift[(programs,)](x, 128, BLOCK=128 // programs)
