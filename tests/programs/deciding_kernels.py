"""A bench whose kernels, and how many programs they have, depend on data."""

import triton
import triton.language as tl


@triton.jit
def sum_ragged(x, lengths, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, tl.load(lengths + row), BLOCK):
        total += tl.load(x + row * 256 + start + tl.arange(0, BLOCK))
    tl.store(out + row, tl.sum(total, axis=0))


@triton.jit
def take_turns(lock, total):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1)
    tl.atomic_xchg(lock, 0)


@triton.jit
def double(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * 2)


def run(torch):
    x = torch.ones(4, 256)
    lengths = torch.tensor([32, 64, 64, 256], dtype="i32")
    out = torch.zeros(4)
    sum_ragged[(4,)](x, lengths, out, BLOCK=32)
    assert out.tolist() == lengths.tolist()
    total = torch.zeros(1, dtype="i32")
    take_turns[(12,)](torch.zeros(1, dtype="i32"), total)
    double[(int(total[0].item()),)](x, BLOCK=32)
