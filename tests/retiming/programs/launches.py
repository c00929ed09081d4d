"""A step of small operations around a collective; CAPTURED says whether it is a CUDA graph."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(64, 64, device="cuda")


def step():
    for _ in range(20):
        x.mul_(1.5)
    dist.all_reduce(x)
    for _ in range(20):
        x.mul_(0.5)


step()
torch.cuda.synchronize()
if os.environ.get("CAPTURED"):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    again = graph.replay
else:
    again = step
torch.cuda.synchronize()
dist.barrier()
again()
torch.cuda.synchronize()
