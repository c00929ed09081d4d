"""What a real process has once, and every simulated one for itself.

python process_state.py CASE [ARGUMENTS]
"""

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import own_state
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def threads(folder):
    """Each process has a main thread, and lists its own threads."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    going = threading.Event()
    started = [threading.Thread(target=going.wait) for _ in range(rank + 1)]
    for item in started:
        item.start()
    dist.barrier()
    seen = [
        threading.current_thread() is threading.main_thread(),
        threading.active_count(),
        all(entry in threading.enumerate() for entry in started),
    ]
    going.set()
    for entry in threading.enumerate():
        if entry is not threading.main_thread():
            entry.join()
    seen.append(threading.active_count())
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))


def signals_in_a_loop(folder):
    """A signal handler of an event loop."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")

    async def wait():
        heard, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        if rank == 1:
            loop.call_later(0.01, os.kill, os.getpid(), signal.SIGUSR1)
        else:
            loop.call_later(0.02, loop.stop)
        await heard.wait()
        loop.remove_signal_handler(signal.SIGUSR1)
        return signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL

    try:
        seen = asyncio.run(wait())
    except RuntimeError as error:
        seen = str(error)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))


def everything(folder):
    rank = int(os.environ["RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    if rank == 1:
        torch.set_default_dtype(torch.float64)
        torch.backends.cuda.enable_math_sdp(False)
    sys.argv.append(f"of rank {rank}")
    os.environ["MINE"] = str(rank)
    sys.modules["__main__"].name = f"rank {rank}"  # type: ignore[attr-defined]
    first, gauss = random.gauss(0, 1), np.random.randn()
    dist.barrier()
    with torch.no_grad() if rank == 0 else torch.enable_grad():
        dist.barrier()
        grad_mode = torch.is_grad_enabled()
    seen = {
        "torch": torch.rand(1).item(),
        "device": torch.rand(1, device="cuda").item(),
        "random": [first, random.gauss(0, 1), random.random()],
        "numpy": [gauss, np.random.randn(), np.random.rand()],
        "dtype": str(torch.get_default_dtype()),
        "argv": sys.argv[-1],
        "environ": os.environ["MINE"],
        "main": sys.modules["__main__"].name,
        "math": torch.backends.cuda.math_sdp_enabled(),
        "grad": grad_mode,
        "current": torch.cuda.current_device(),
        "rank": dist.get_rank(),
        "world": os.environ["WORLD_SIZE"],
        "backend": dist.get_backend(),
    }
    with Path(folder, f"rank{rank}.json").open("w") as file:
        json.dump(seen, file)
    dist.destroy_process_group()


def own_modules():
    dist.init_process_group("gloo")
    own_state.seen.append(dist.get_rank())
    dist.barrier()
    assert own_state.seen == [dist.get_rank()]


def change(rank):
    # Imported anew in each process.
    import own_state

    assert own_state.who == "nobody"
    own_state.who = rank
    sys.argv.append(rank)
    random.seed(rank)


def of_who_spawns():
    own_state.who, before, state = "parent", sys.argv[:], random.getstate()
    main = sys.modules["__main__"]
    mp.spawn(change, nprocs=2)
    import own_state as again

    assert again is own_state
    assert again.who == "parent"
    assert sys.argv == before
    assert random.getstate() == state
    assert sys.modules["__main__"] is main
    assert main.change is change


class Counter:
    """One of whose methods ranks run: each has a copy of it, as of what it is given."""

    def __init__(self):
        self.count = 5

    def add(self, rank, me, counts):
        assert me is self
        self.count += rank + 1
        counts.put(self.count)


def method_that_ranks_run():
    counter, counts = Counter(), mp.get_context("spawn").SimpleQueue()
    context = mp.start_processes(counter.add, args=(counter, counts), nprocs=2, join=False)
    assert [process.is_alive() for process in context.processes] == [True, True]
    context.join()
    assert [process.exitcode for process in context.processes] == [0, 0]
    assert sorted([counts.get(), counts.get()]) == [6, 7]
    assert counter.count == 5


def programs_outside(folder):
    script = Path(folder, "child.py")
    script.write_text("")
    subprocess.run([sys.executable, str(script)], check=True)
    subprocess.run([sys.executable, "-m", "this"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL)
    subprocess.run(["true"], check=True)


def threads_that_end(folder):
    place = Path(folder, os.environ.get("RANK", "real"))

    def say(words):
        with place.open("a") as file:
            print(words, file=file)

    def late(words, seconds):
        time.sleep(seconds)
        say(words)

    pool = ThreadPoolExecutor(2)
    say(pool.submit(lambda: threading.current_thread().daemon).result())
    say(threading.current_thread().daemon)
    threading.Thread(target=late, args=("thread", 0.02)).start()
    threading.Thread(target=late, args=("daemon", 9), daemon=True).start()
    pool.submit(late, "task", 0.05)


def keep_thresholds(rank, path):
    Path(path).write_text(str(gc.get_threshold()))


def garbage(folder):
    for count in (2, 3):
        mp.spawn(keep_thresholds, (f"{folder}/{count}",), nprocs=count)


def thread_pools(path):
    with ThreadPool(2) as pool:
        Path(path).write_text(str(pool.map(lambda x: x * x, range(5))))


class Finder:
    find_spec = staticmethod(PathFinder.find_spec)


def count(rank):
    import own_state

    own_state.count += 1
    assert own_state.count == 1, own_state.count


def own_finder():
    # As pytest does, which rewrites assertions.
    sys.meta_path.insert(0, Finder())
    del sys.modules["own_state"]
    import own_state

    own_state.count = 0
    mp.spawn(count, nprocs=3)
    assert own_state.count == 0


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
