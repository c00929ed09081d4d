"""Each rank prints to its own stream, and works in its own folder.

python streams_and_folders.py FOLDER
"""

import contextlib
import io
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)


def meet():
    dist.all_reduce(torch.ones(1, device="cuda"))


printed = io.StringIO()
with contextlib.redirect_stdout(printed) if rank == 0 else contextlib.nullcontext():
    print(f"before of {rank}")
    meet()
    print(f"after of {rank}")
folder = Path(sys.argv[1], str(rank))
folder.mkdir()
os.chdir(folder)
meet()
with Path("own.txt").open("w") as file:
    file.write(printed.getvalue())
meet()


class Tee:
    def __init__(self, *streams):
        self.streams = streams

    def write(self, text):
        for stream in self.streams:
            stream.write(text)
        return len(text)

    def flush(self):
        pass


with Path("tee.txt").open("w") as file:
    if rank == 1:
        sys.stdout = Tee(sys.stdout, file)
    meet()
    print(f"end of {rank}")
