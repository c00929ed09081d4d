"""Worker processes in their several forms; prints what real ones print.

python pools.py PATH writes to PATH and the number of the rank.
"""

import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import Manager, Pipe, Pool, Process, Queue, current_process
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

CALLS = {"count": 0}
LARGE = np.arange(6)


class Counter:
    def __init__(self):
        self.seen: list[int] = []

    def see(self, number):
        self.seen.append(number)
        return len(self.seen)


COUNTER = Counter()


def square(number):
    CALLS["count"] += 1
    LARGE[:] = -1
    COUNTER.see(number)
    return number**2


def fail(number):
    raise ValueError(f"of {number}")


def prepare(value):
    CALLS["count"] = value


def told(_):
    return CALLS["count"]


def child(end, name, queue, shared, counter):
    segment = SharedMemory(name=name)
    np.ndarray((4,), dtype=np.int64, buffer=segment.buf)[:] = [1, 2, 3, 4]
    segment.close()
    counter.see(7)
    random.seed(3)
    os.environ["OF_WORKER"] = "1"
    end.send((current_process().name, os.getpid() != os.getppid(), counter.seen))
    end.close()
    queue.put(CALLS["count"])
    shared["key"] = LARGE.sum()


def main():
    result: list[Any] = []
    random.seed(1)
    with Pool(2) as pool:
        result.append(pool.map(square, range(6)))
        result.append(pool.starmap(max, [(1, 2), (4, 3)]))
        result.append(sorted(pool.imap_unordered(partial(pow, 2), range(4))))
        result.append(pool.apply_async(square, (9,)).get())
        try:
            pool.map(fail, [1])
        except ValueError as error:
            result.append(repr(error))
    with Pool(1, prepare, (5,), maxtasksperchild=1) as pool:
        result.append([pool.apply(told, (0,)) for _ in range(2)])
    with ProcessPoolExecutor(2) as executor:
        result.append(list(executor.map(square, [1, 2, 3])))
        result.append(repr(executor.submit(fail, 3).exception()))
        result.append(repr(executor.submit(sys.exit, 4).exception()))
        result.append(executor.submit(square, 5).result())
    # A worker that ends in the middle of a task, and ones that cannot begin, break their pool.
    with ProcessPoolExecutor(1) as executor:
        result.append(repr(executor.submit(os._exit, 3).exception()))
        try:
            executor.submit(square, 5)
        except BrokenProcessPool as error:
            result.append(repr(error))
    with ProcessPoolExecutor(1, initializer=fail, initargs=(1,)) as executor:
        result.append(type(executor.submit(square, 5).exception()).__name__)
    CALLS["count"] = 11
    name = f"segment{os.environ['SEGMENT']}{os.environ['RANK']}"
    segment = SharedMemory(create=True, size=32, name=name)
    manager, (ours, theirs) = Manager(), Pipe()
    queue: Any = Queue()
    shared = manager.dict()
    worker = Process(
        target=child, args=(theirs, segment.name, queue, shared, COUNTER), name="child"
    )
    worker.start()
    result.append(wait([worker.sentinel]) == [worker.sentinel])
    worker.join()
    result += [ours.recv(), queue.get(), dict(shared), worker.exitcode]
    result.append(np.ndarray((4,), dtype=np.int64, buffer=segment.buf).tolist())
    segment.close()
    segment.unlink()
    # Nothing of this has changed here.
    result += [CALLS, LARGE.tolist(), COUNTER.seen, random.random(), "OF_WORKER" in os.environ]
    with Path(f"{sys.argv[1]}{os.environ['RANK']}").open("w") as file:
        print(*result, sep="\n", file=file)


if __name__ == "__main__":
    main()
