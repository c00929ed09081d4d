"""Processes that multiprocessing starts: too many or too few for a group, and failing ones.

python few_processes.py CASE [ARGUMENTS]
"""

import multiprocessing as mp
import sys
import time

import torch
import torch.distributed as dist


def meet(rank, size):
    dist.init_process_group("nccl", rank=rank, world_size=size, init_method="tcp://localhost:29512")
    dist.barrier()


def group(started, size):
    for rank in range(int(started)):
        mp.Process(target=meet, args=(rank, int(size))).start()


def fail():
    # The host is ahead of the simulation as it ends.
    for _ in range(100):
        torch.ones(3, device="cuda")
    sys.exit(3)


def failing():
    for _ in range(3):
        started = [mp.Process(target=fail) for _ in range(4)]
        for process in started:
            process.start()
        while any(item.exitcode is None for item in started):
            time.sleep(1e-6)
        assert [item.exitcode for item in started] == [3] * 4


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
