"""Programs of which something cannot be compiled.

python inductor_failing.py CASE
"""

import os
import sys

import torch
import triton
import triton.language as tl


def on_the_host() -> None:
    """Inductor wants a C++ compiler for what is computed there."""
    torch.compile(lambda x: x.sin() + 1)(torch.ones(40))


def one_rank_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        print("between two graphs")
        return x + 1

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    function = torch.compile(broken if rank else torch.sin, fullgraph=True)
    function(torch.ones(3, device="cuda"))


@triton.jit
def assembly_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    value = tl.inline_asm_elementwise(
        "add.f32 $0, $1, 1.0;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(y + at, value, mask=at < n)


def a_kernel_that_does_not_run() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        assembly_kernel[(1,)](x, y, x.numel(), BLOCK=16)
        return y * 2

    torch.compile(call)(torch.ones(10, device="cuda"))


globals()[sys.argv[1]]()
