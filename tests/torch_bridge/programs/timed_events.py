"""Events around kernels in a queue that is never empty.

python timed_events.py [timed | plain]
"""

import sys

import torch

timed = sys.argv[1] == "timed"
x = torch.zeros(64, 64, device="cuda")
large = torch.zeros(1 << 28, device="cuda")
torch.cuda.synchronize()
for _ in range(4):
    large.zero_()
    start, end = (torch.cuda.Event(enable_timing=timed) for _ in range(2))
    start.record()
    x.add_(1)
    end.record()
torch.cuda.synchronize()
