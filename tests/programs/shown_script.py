"""A script whose kernels are shown.

python shown_script.py BLOCK [unused]
"""

import sys

import triton
import triton.language as tl

from kernbench.runtime_api import current_context


@triton.jit
def accumulate(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * 0.5)


@triton.jit
def unused(x):
    pass


if __name__ == "__main__":
    torch = current_context()
    x, out = torch.zeros(256), torch.zeros(256)
    accumulate[(2,)](x, out, 256, BLOCK=int(sys.argv[1]))
    if len(sys.argv) > 2:
        unused[(1,)](x)
