"""Threads of a process that share what a manager serves, simulated or real.

python managed.py PATH writes what they have found.
"""

import multiprocessing
import sys
import threading
from pathlib import Path


def use(manager, number):
    queue, done, names = manager.Queue(maxsize=2), manager.dict(zero=0), manager.list([1])
    lock, ended = manager.Lock(), manager.Event()
    value, place = manager.Value("i", 3), manager.Namespace(x=1)
    numbers = manager.Array("d", [1.5, 2])

    def take():
        while (item := queue.get()) is not None:
            with lock:
                done[item] = done.get("zero") + item
                names.append(item)
                value.value += 1
        ended.set()

    thread = threading.Thread(target=take)
    thread.start()
    for item in [*range(number), None]:
        queue.put(item)
    assert ended.wait(60)
    thread.join()
    place.y, numbers[0] = number, 4.5
    return [
        sorted(done.keys(), key=str),
        [*done.values()],
        [*names],
        len(names),
        value.value,
        place.x + place.y,
        [*numbers],
        queue.empty(),
        done.copy(),
    ]


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Manager() as manager:
        Path(sys.argv[1]).write_text(f"{use(manager, 5)}")
