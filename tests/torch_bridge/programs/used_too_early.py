"""The host uses pinned memory while it is copied (``read``, ``view`` or ``write``), or later."""

import sys

import torch

n, wrong = 1 << 20, sys.argv[1]
x, host = torch.ones(n, device="cuda"), torch.empty(n, pin_memory=True)
torch.cuda.synchronize()
host.copy_(x, non_blocking=True)
if wrong != "read":
    torch.cuda.synchronize()
print(host[0].item())
torch.cuda.synchronize()
x.copy_(host, non_blocking=True)
host.sum()
if wrong != "write":
    torch.cuda.synchronize()
host.zero_()
torch.cuda.synchronize()


def view_of(x):
    return x.to("cpu", non_blocking=True).numpy()


unread = view_of(x)
del unread
view = x.to("cpu", non_blocking=True).numpy()
if wrong != "view":
    torch.cuda.synchronize()
print(view[0])
del view
torch.cuda.synchronize()
