"""A bench whose kernel does not compile, or whose other one is given an array of numpy."""

import numpy as np
import triton
import triton.language as tl


@triton.jit
def broken(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, misspelled)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def sound(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)


def run(torch, text: str = "tensor"):
    if text == "tensor":
        broken[(1,)](torch.ones(64), BLOCK=64)
    else:
        sound[(1,)](np.ones(64), BLOCK=64)
