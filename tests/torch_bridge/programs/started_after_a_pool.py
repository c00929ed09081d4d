"""Starts a process once it has had a pool, and writes what the two know of each other."""

import multiprocessing as mp
import os
import sys
from pathlib import Path

import torch  # noqa: F401

FIRST = os.getpid()
count = 1


def square(number: int) -> int:
    return number * number


def tell(queue: "mp.Queue[object]") -> None:
    parent = mp.parent_process()
    assert parent is not None
    queue.put((os.getpid(), os.getppid(), FIRST, parent.pid, parent.is_alive(), count))


if __name__ == "__main__":
    count = 3
    with mp.get_context("fork").Pool(2) as pool:
        squares = pool.map(square, [2, 3])
    context = mp.get_context("fork")
    queue: "mp.Queue[tuple[object, ...]]" = context.Queue()
    started = context.Process(target=tell, args=(queue,))
    started.start()
    pid, parent_pid, first, known, alive, number = queue.get()
    started.join()
    mine = parent_pid == first == known == os.getpid()
    Path(sys.argv[1]).write_text(
        f"{squares} {pid == started.pid} {pid != os.getpid()} {mine} {alive} {number}"
    )
