# torch.library.wrap_triton outside of a triton_op, as flash-attn's rotary calls it.
# run: kernbench torchrun {file}
# expect: tensor\(\[2\., 2\., 2\.\]\)

import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


x = torch.ones(3, device="cuda")
y = torch.empty_like(x)
torch.library.wrap_triton(double_kernel)[(1,)](x, y, 3, BLOCK=4)
print(y.cpu())
