"""Processes that get signals from others: what each does is printed, as real ones would."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time

SPAWN = multiprocessing.get_context("spawn")


def leave(number, _):
    sys.exit(number - 8)


def by_handler(pipe):
    signal.signal(signal.SIGTERM, leave)
    pipe.send("ready")
    time.sleep(50)


def by_loop(pipe):
    async def serve():
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        pipe.send("ready")
        await stop.wait()
        pipe.send("stopped")

    asyncio.run(serve())


def by_pause(pipe):
    signal.signal(signal.SIGTERM, lambda *_: None)
    pipe.send("ready")
    signal.pause()
    pipe.send("stopped")


def interrupted(pipe):
    pipe.send("ready")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pipe.send("stopped")


def goes_on(pipe):
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(time.monotonic()))
    began = time.monotonic()
    pipe.send("ready")
    time.sleep(0.5)
    pipe.send(f"{len(heard)} heard, went on: {heard[0] + 0.2 < time.monotonic() < began + 5}")


def default(pipe):
    pipe.send("ready")
    time.sleep(50)


def ignores(pipe):
    pipe.send("ready")
    time.sleep(0.3)
    pipe.send("stopped")


def starts_another(pipe):
    child = SPAWN.Process(target=by_handler, args=(pipe,))
    child.start()
    pipe.send(child.pid)
    child.join()
    pipe.send(f"its child {child.exitcode}")


def case(target, number):
    mine, its = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(its,))
    child.start()
    its.close()
    assert child.pid is not None
    pid: int = child.pid
    if target is starts_another:
        pid = mine.recv()
    assert mine.recv() == "ready"
    time.sleep(0.1)
    if number == signal.SIGTERM and target is not starts_another:
        child.terminate()
    else:
        os.kill(pid, number)
    said = []
    try:
        while True:
            said.append(mine.recv())
    except EOFError:
        child.join()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        said.append("is gone")
    print(target.__name__, signal.Signals(number).name, child.exitcode, *said)


def main():
    if len(sys.argv) > 1:
        import torch.distributed as dist

        dist.init_process_group("nccl")
    # A new program has no handlers, but ignores what its parent ignored.
    signal.signal(signal.SIGTERM, leave)
    case(by_handler, signal.SIGTERM)
    case(by_handler, signal.SIGKILL)
    case(by_loop, signal.SIGTERM)
    case(by_pause, signal.SIGTERM)
    case(interrupted, signal.SIGINT)
    case(goes_on, signal.SIGUSR1)
    case(default, signal.SIGTERM)
    case(starts_another, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    case(ignores, signal.SIGTERM)
    if len(sys.argv) > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
