"""A process that starts the processes with devices, as servers of engines do: writes what they say.

python started_by_started.py FILE
"""

import multiprocessing
import os
import sys
from pathlib import Path

import own_classes
import torch
import torch.distributed as dist


def work(rank, pipe):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29533"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    x = torch.full((2,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    pipe.send((rank, x.tolist(), torch.cuda.current_device(), os.getppid()))
    pipe.recv()


def serve(pipe, settings, kind):
    is_own = type(settings) is kind is own_classes.Settings
    pipe.send([settings.word, is_own])
    started, ends = [], []
    for rank in range(2):
        mine, its = multiprocessing.Pipe()
        process = multiprocessing.Process(target=work, args=(rank, its))
        process.start()
        its.close()
        started.append(process)
        ends.append(mine)
    for end in ends:
        *result, parent = end.recv()
        pipe.send([*result, parent == os.getpid()])
    for end in ends:
        end.send("go on")
    for process in started:
        process.join()
    pipe.send([process.exitcode for process in started])


def main():
    mine, its = multiprocessing.Pipe()
    arguments = own_classes.Settings("of the server"), own_classes.Settings
    process = multiprocessing.Process(target=serve, args=(its, *arguments))
    process.start()
    its.close()
    with Path(sys.argv[1]).open("w") as file:
        print(*(mine.recv() for _ in range(4)), sep="\n", file=file)
    process.join()


if __name__ == "__main__":
    main()
