"""Times of a Triton kernel's product in milliseconds: recorded, and without autograd."""

import torch
import triton
import triton.language as tl

ROWS, SIZE = 32768, 64


@triton.jit
def product_kernel(x_ptr, w_ptr, y_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    inner = tl.arange(0, SIZE)
    at = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None] * SIZE + inner[None, :]
    w = tl.load(w_ptr + inner[:, None] * SIZE + inner[None, :])
    tl.store(y_ptr + at, tl.dot(tl.load(x_ptr + at), w).to(tl.float16))


def took():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**7)  # the host gets ahead
    begin.record()
    product_kernel[(ROWS // 32,)](x, w, y, SIZE, BLOCK=32)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


x, y = (torch.empty(ROWS, SIZE, dtype=torch.float16, device="cuda") for _ in range(2))
w = torch.empty(SIZE, SIZE, dtype=torch.float16, device="cuda")
recorded = took()
with torch.no_grad():
    print("times", recorded, took())
