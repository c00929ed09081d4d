"""Starts four ranks by multiprocessing, talks to them through pipes, and writes what it has seen.

python started_processes.py FILE spawn|fork cpu|cuda
"""

import os
import sys
import time
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

method, device, size = sys.argv[2], sys.argv[3], 4
calls = 0
factor = 1


class Worker(mp.get_context(method).Process):  # type: ignore[misc]  # mypy knows no class by a call
    def __init__(self, rank, pipe):
        super().__init__(name=f"worker {rank}")
        self.rank, self.pipe = rank, pipe

    def run(self):
        work(self.rank, self.pipe)


def work(rank, pipe):
    global calls
    calls += 1
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29533"
    dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=rank, world_size=size)
    if device == "cuda":
        torch.cuda.set_device(rank)
    x = torch.full((2,), rank + 1.0, device=device)
    dist.all_reduce(x)
    word = pipe.recv()
    pipe.send((rank, dist.get_rank(), x.tolist(), word, calls, factor, os.environ["GIVEN"]))
    if rank == 3:
        pipe.recv()
    dist.destroy_process_group()
    if rank == 2:
        raise ValueError("of a rank")
    sys.exit(rank * 2)


def main():
    global factor
    factor = 3
    os.environ["GIVEN"] = "by the parent"
    context, started, pipes = mp.get_context(method), [], []
    result: list[Any] = []
    # In another order than that of their ranks.
    for rank in reversed(range(size)):
        mine, its = context.Pipe()
        process = Worker(rank, its) if rank == 1 else context.Process(target=work, args=(rank, its))
        result.append((process.is_alive(), process.exitcode))
        process.start()
        its.close()
        started.append(process)
        pipes.append(mine)
    result.append((len({item.pid for item in started}), started[0].is_alive()))
    for pipe in pipes:
        pipe.send("go")
    ready = connection.wait(pipes, timeout=60)
    result.append(bool(ready))
    result += [pipe.recv() for pipe in pipes]
    receiver, sender = context.Pipe(duplex=False)
    result += [receiver.poll(), receiver.poll(0.01), receiver.writable, sender.readable]
    result += [isinstance(sender, connection.Connection), sender.closed]
    sender.send_bytes(b"abc")
    result += [receiver.poll(), receiver.recv_bytes()]
    try:
        receiver.send(1)
    except OSError as error:
        result.append(str(error))
    receiver.close()
    try:
        sender.send(1)
    except BrokenPipeError:
        result.append("broken")
    receiver, sender = context.Pipe(duplex=False)
    sender.send("last")
    sender.close()
    result += [receiver.recv(), receiver.poll()]
    try:
        receiver.recv()
    except EOFError:
        result.append("closed")
    pipes[0].send("go on")
    for process in started:
        process.join()
        result.append((process.is_alive(), process.exitcode))
    result.append(mp.active_children())
    # Those of a second world begin anew.
    sleeper = context.Process(target=time.sleep, args=(600,))
    sleeper.start()
    sleeper.join(0.05)
    result.append((sleeper.is_alive(), sleeper.exitcode))
    sleeper.terminate()
    sleeper.join()
    result.append(sleeper.exitcode)
    daemon = context.Process(target=time.sleep, args=(600,), daemon=True)
    daemon.start()
    with Path(sys.argv[1]).open("w") as file:
        print(*result, sep="\n", file=file)


if __name__ == "__main__":
    main()
