"""Random numbers in a kernel, a library function, and an autograd function around both."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def noisy_atan_kernel(x_ptr, out_ptr, count, keep, seed, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + where, mask=where < count)
    kept = tl.rand(seed, where) < keep
    tl.store(out_ptr + where, tl.where(kept, libdevice.atan(x) / keep, 0.0), mask=where < count)


class NoisyAtan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep, seed):
        out = torch.empty_like(x)
        noisy_atan_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), keep, seed, BLOCK=256)
        ctx.save_for_backward(x, out)
        ctx.keep = keep
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, out = ctx.saved_tensors
        return gradient * (out != 0) / ctx.keep / (1 + x * x), None, None


x = torch.randn(2000, device=DEVICE).requires_grad_(True)
first, again, other = (NoisyAtan.apply(x, 0.75, seed) for seed in (1, 1, 2))
assert torch.equal(first, again)
assert not torch.equal(first, other)
kept = first != 0
assert abs(kept.float().mean().item() - 0.75) < 0.05
torch.testing.assert_close(first[kept], (torch.atan(x) / 0.75)[kept])
first.sum().backward()
torch.testing.assert_close(x.grad[kept], (1 / 0.75 / (1 + x * x))[kept].detach())
print("all close")
