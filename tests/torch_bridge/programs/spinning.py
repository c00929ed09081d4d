"""Processes that spin on shared memory, as the queues of servers do, and give way meanwhile.

python spinning.py FILE notice|orphan
"""

import os
import struct
import sys
import threading
import time
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

SPAWN = get_context("spawn")
ROUNDS = 3


def attached(name):
    segment = SharedMemory(name)
    assert segment.buf is not None
    # The memory is released with the segment.
    return segment, segment.buf


def write(name):
    _segment, flags = attached(name)
    for number in range(1, ROUNDS + 1):
        time.sleep(0.02)
        struct.pack_into("d", flags, 8, time.monotonic())
        flags[0] = number
    while flags[1] != ROUNDS:
        os.sched_yield()


def read(name, path):
    _segment, flags = attached(name)
    for number in range(1, ROUNDS + 1):
        laps, deadline = 0, time.monotonic() + 1
        while flags[0] != number:
            assert time.monotonic() < deadline
            os.sched_yield()
            laps += 1
        late = time.monotonic() - struct.unpack_from("d", flags, 8)[0]
        with Path(path).open("a") as file:
            print(late, laps, file=file)
        flags[1] = number


def notice(path):
    segment = SharedMemory(create=True, size=64)
    started = [SPAWN.Process(target=write, args=(segment.name,))]
    started.append(SPAWN.Process(target=read, args=(segment.name, path)))
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0]
    segment.unlink()


def spin(reader, writer, path):
    writer.close()
    ended = threading.Event()

    def watch():
        try:
            reader.recv()
        except EOFError:
            ended.set()

    threading.Thread(target=watch, daemon=True).start()
    while not ended.is_set():
        os.sched_yield()
    Path(path).write_text("its parent has ended")


def serve(path):
    reader, writer = SPAWN.Pipe(duplex=False)
    SPAWN.Process(target=spin, args=(reader, writer, path)).start()
    reader.close()
    time.sleep(100)


def orphan(path):
    server = SPAWN.Process(target=serve, args=(path,))
    server.start()
    time.sleep(1)
    server.terminate()
    server.join()
    time.sleep(1)


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
