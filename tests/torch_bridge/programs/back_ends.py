"""A group of the back end NAME, and one beside it that rank 0 alone has.

python back_ends.py NAME
"""

import sys

import torch
import torch.distributed as dist

name = sys.argv[1]
dist.init_process_group(name)
rank = dist.get_rank()
torch.cuda.set_device(rank)
assert dist.get_backend() == name.lower()
x = torch.full((4,), rank + 1.0, device="cuda")
dist.all_reduce(x)
assert x.tolist() == [3.0] * 4
if "gloo" in name:
    y = torch.full((4,), rank + 1.0)
    dist.all_reduce(y)
    assert y.tolist() == [3.0] * 4
own = dist.new_group([0], backend=name)
if rank == 0:
    dist.all_reduce(x, group=own)
dist.barrier()
dist.destroy_process_group()
