"""A kernel that calls a function of another file, under both of its names."""

import kb_helper
import triton
import triton.language as tl
from kb_helper import doubled


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, kb_helper.doubled(doubled(tl.load(x_ptr + at, mask=at < n))))
