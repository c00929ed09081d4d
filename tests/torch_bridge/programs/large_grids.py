"""Launches of many programs, of as many elements as the arguments say."""

import sys

import torch
import triton
import triton.language as tl

from kernbench.runtime_api import KernelLauncher
from kernbench.triton_backend.launcher import active_launcher


@triton.jit(do_not_specialize=("n",))
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at % 96, mask=at < n)
    tl.store(y_ptr + at, 2 * x, mask=at < n)


x = torch.zeros(96, device="cuda")
for n in map(int, sys.argv[1:]):
    y = torch.empty(n, device="cuda")
    for _ in range(3):
        scale[(-(-n // 16),)](x, y, n, BLOCK=16)
torch.cuda.synchronize()
launcher = active_launcher()
assert isinstance(launcher, KernelLauncher)
kept = launcher.kept_plans
print("plans", len(kept), "bytes", kept.size_bytes)
