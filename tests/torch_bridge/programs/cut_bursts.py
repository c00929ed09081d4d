"""A collective begins while a stream waits for its next operation, which is planned already."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(1024, 1024, device="cuda")
y = torch.ones(1024, 1024, device="cuda")
torch.cuda.synchronize()


def spend(calls: int) -> None:
    """Let the host take time for Python, without a look at the clock."""
    for _ in range(calls):
        (lambda: None)()


if rank == 0:
    spend(3000)
work = dist.all_reduce(y, async_op=True)
torch.relu(x)
spend(6000)
torch.neg(x)
work.wait()
torch.cuda.synchronize()
