"""A bench whose kernels are shown: one with a loop, one that goes where its data says."""

import triton
import triton.language as tl


@triton.jit
def accumulate(x, out, n, scale, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.range(4, num_stages=2):
        offsets = (program * 4 + i) * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x + offsets, mask=offsets < n)
    tl.device_print("total", tl.sum(total, axis=0))
    tl.store(out + program * BLOCK + tl.arange(0, BLOCK), total * scale)


@triton.jit
def pick(x, out, BLOCK: tl.constexpr):
    index = tl.load(x + tl.arange(0, BLOCK)).to(tl.int32)
    tl.store(out + index, index)


@triton.jit
def unused(x):
    pass


def run(torch, n: int = 256, block: int = 32):
    x, out = torch.zeros(n), torch.zeros(n)
    print("the bench speaks")
    accumulate[(n // (4 * block),)](x, out, n, 0.5, BLOCK=block, num_stages=2)
    accumulate[(1,)](x, out, n, 0.5, BLOCK=2 * block)
    pick[(1,)](x, out, BLOCK=block)
    assert x.tolist() == [0.0] * n
