"""Times of one operation in milliseconds in the three phases of a program, by what runs it."""

import sys

import torch
import triton
import triton.language as tl

SIZE = int(sys.argv[1])
TIMES = 8


@triton.jit
def relu_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < size)
    tl.store(y_ptr + offsets, tl.maximum(x, 0.0), mask=offsets < size)


@triton.jit
def relu_backward_kernel(dy_ptr, y_ptr, dx_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + offsets, mask=offsets < size)
    y = tl.load(y_ptr + offsets, mask=offsets < size)
    tl.store(dx_ptr + offsets, tl.where(y > 0, dy, 0.0), mask=offsets < size)


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(SIZE, 1024),)](x, y, SIZE, BLOCK=1024)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        relu_backward_kernel[(triton.cdiv(SIZE, 1024),)](dy, y, dx, SIZE, BLOCK=1024)
        return dx


def took(work):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**7)  # the host gets ahead
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / TIMES


def phases(relu):
    def forward():
        y = x
        for _ in range(TIMES):
            y = relu(y)
        return y

    recorded = took(forward)
    y = forward()
    backward = took(lambda: torch.autograd.grad(y, x, y))
    with torch.no_grad():
        return recorded, backward, took(forward)


x = torch.empty(SIZE, dtype=torch.float16, device="cuda", requires_grad=True)


class Weighted(torch.nn.Module):
    """Its weight is as large as what it is multiplied with."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty_like(x))

    def forward(self, y):
        return (self.weight * y).relu()


for kind in sys.argv[2:]:
    if kind == "compiled":
        relu = torch.compile(torch.relu)
    elif kind == "weighted":
        relu = torch.compile(Weighted())
    else:
        relu = Relu.apply if kind == "triton" else torch.relu
    phases(relu)  # compiles
    print("times", *phases(relu))
