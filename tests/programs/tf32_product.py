"""A product of numbers that TF32 does not hold."""

import triton
import triton.language as tl

from kernbench.runtime_api import current_context


@triton.jit
def product(a, b, out):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


torch = current_context()
out = torch.zeros(16, 16)
product[(1,)](torch.full((16, 16), 1 + 2**-11 + 2**-20), torch.ones(16, 16), out)
print("each is", out[3, 5].item() / 16)
