"""PyTorch's own sanitizer of streams, with a race and with what orders operations."""

import os
import sys

import torch
from torch.cuda._sanitizer import CUDASanitizerErrors

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
is_wrong = sys.argv[1] == "wrong"
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
x = torch.rand(4, 2, device="cuda")
try:
    if not is_wrong:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.mul(x, 5, out=x)
    assert not is_wrong
except CUDASanitizerErrors:
    assert is_wrong
else:
    main.wait_stream(side)
    x += 1
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    with torch.cuda.stream(side):
        x += 1
        x.sum().item()
    x += 1
    torch.cuda.synchronize()
    for _ in range(20):
        # The memory of one is that of the next, on another stream.
        with torch.cuda.stream(side):
            torch.rand(100, device="cuda").sum()
        torch.rand(100, device="cuda").sum()
