"""Times of one operation on 32 MiB in milliseconds, in the three phases of a program."""

import sys

import torch

SIZE = int(sys.argv[1])


def took(work):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**7)  # the host gets ahead
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / TIMES


def forward():
    y = x
    for _ in range(TIMES):
        y = y.relu()
    return y


TIMES = 8
x = torch.empty(SIZE, dtype=torch.float16, device="cuda", requires_grad=True)
recorded = took(forward)
y = forward()
backward = took(lambda: torch.autograd.grad(y, x, y, retain_graph=True))
with torch.no_grad():
    unrecorded = took(forward)
print("times", recorded, backward, unrecorded)
