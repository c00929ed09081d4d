"""A function that a kernel of another file calls."""

import triton


@triton.jit
def doubled(x):
    return x * 2
