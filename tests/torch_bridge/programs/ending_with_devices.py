"""Use devices and other ranks in a handler for the end.

python ending_with_devices.py PATH
"""

import atexit
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
x = torch.full((4,), float(rank), device="cuda")


def bye():
    dist.all_reduce(x)
    torch.cuda.synchronize()
    said = f"{x.sum().item()} {os.environ['RANK']} {torch.cuda.current_device()}"
    Path(f"{sys.argv[1]}{rank}").write_text(said)
    dist.destroy_process_group()


atexit.register(bye)
