"""Copies from the host behind work of the device: python host_copies.py KIND [plain|pinned]."""

import sys

import torch

kind, memory = sys.argv[1:]
x = torch.zeros(1 << 20, device="cuda")
target = torch.zeros(4, device="cuda")
host = torch.ones(4)
if memory == "pinned":
    host = host.pin_memory()
for _ in range(9):
    x.add_(1)
match kind:
    case "to":
        cuda = host.to("cuda")
    case "cuda":
        cuda = host.cuda()
    case "copy":
        cuda = target.copy_(host)
    case "assigned":
        target[:] = host
        cuda = target
    case "tensor":
        cuda = torch.tensor([1.0, 1.0, 1.0, 1.0], device="cuda")
    case "to_on":
        cuda = host.to("cuda", non_blocking=True)
    case "cuda_on":
        cuda = host.cuda(non_blocking=True)
    case "copy_on":
        cuda = target.copy_(host, non_blocking=True)
    case "filled":
        cuda = target.fill_(1.0)
    case "of_device":
        cuda = target.copy_(torch.ones(4, device="cuda"))
cuda.add_(1)
