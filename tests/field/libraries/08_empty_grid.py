# A grid with a zero in it is skipped.
# run: kernbench torchrun {file}
# expect: nothing to do

import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


x = torch.ones(0, device="cuda")
double_kernel[(triton.cdiv(x.numel(), 4),)](x, torch.empty_like(x), 0, BLOCK=4)
print("nothing to do")
