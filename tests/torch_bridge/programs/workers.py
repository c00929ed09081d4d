"""Starts processes of a rank, and writes how they went.

python workers.py PATH writes to PATH and the number of the rank.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import multiprocessing as mp


def write(number, results, done):
    results.put((number, number**2))
    time.sleep(0.01)
    done.get()
    done.task_done()


def leave(status):
    sys.exit(status)


def fail():
    raise ValueError("of a worker")


class Named(mp.get_context("fork").Process):  # type: ignore[misc]  # mypy knows no class by a call
    def __init__(self, queue):
        super().__init__(name="named")
        self.queue = queue

    def run(self):
        self.queue.put(self.name)


def main():
    dist.init_process_group("gloo")
    context = mp.get_context("fork")
    results, done = context.Queue(), context.JoinableQueue()
    result: list[Any] = []
    workers = [context.Process(target=write, args=(n, results, done)) for n in range(3)]
    for worker in workers:
        result.append((worker.is_alive(), worker.exitcode))
        worker.start()
    result.append(workers[0].is_alive())
    for number in range(3):
        done.put(number)
    done.join()
    result.append(sorted(results.get() for _ in workers))
    for worker in workers:
        worker.join()
    ended = [context.Process(target=leave, args=(status,)) for status in (3, None, "words")]
    ended.append(context.Process(target=fail))
    ended.append(Named(results))
    for worker in (*workers, *ended):
        if worker.exitcode is None:
            worker.start()
            worker.join()
        result.append((worker.is_alive(), worker.exitcode))
    result.append(results.get())
    long = context.Process(target=time.sleep, args=(60,), daemon=True)
    long.start()
    long.join(timeout=0.01)
    result.append((long.is_alive(), long.exitcode))
    long.terminate()
    while long.is_alive():
        pass
    long.join()
    result += [long.exitcode, mp.active_children()]
    with Path(f"{sys.argv[1]}{os.environ['RANK']}").open("w") as file:
        print(*result, sep="\n", file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
