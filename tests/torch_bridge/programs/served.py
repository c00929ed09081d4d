"""An engine that is rank 0 of the processes that it starts, and tells them at its end to end.

python served.py FILE NAME-OF-MEMORY
"""

import atexit
import pickle
import sys
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZE, NAME = 3, sys.argv[2]


class Runner:
    def __init__(self, rank, events):
        self.rank, self.events = rank, events
        self.seen: list[Any] = []
        self.memory: Any
        dist.init_process_group("nccl", "tcp://localhost:2333", world_size=SIZE, rank=rank)
        torch.cuda.set_device(rank)
        if rank == 0:
            self.memory = SharedMemory(name=NAME, create=True, size=4096)
            dist.barrier()
        else:
            dist.barrier()
            self.memory = SharedMemory(name=NAME)
            while self.call(*self.read()):
                pass

    def read(self):
        self.events.wait()
        count = int.from_bytes(self.memory.buf[:4], "little")
        data = pickle.loads(self.memory.buf[4 : count + 4])
        self.events.clear()
        return data

    def call(self, *asked):
        if self.rank == 0:
            data = pickle.dumps(asked)
            self.memory.buf[: len(data) + 4] = len(data).to_bytes(4, "little") + data
            for event in self.events:
                event.set()
        if asked[0] == "end":
            self.memory.close()
            dist.barrier()
            if self.rank == 0:
                self.memory.unlink()
            torch.save(self.seen, f"{sys.argv[1]}{self.rank}")
            dist.destroy_process_group()
            return False
        x = torch.full((2,), asked[1] + self.rank, device="cuda")
        dist.all_reduce(x)
        self.seen.append((x.tolist(), str(x.device)))
        return True


def main():
    context = mp.get_context("spawn")
    events = [context.Event() for _ in range(1, SIZE)]
    started = [
        context.Process(target=Runner, args=(rank, event))
        for rank, event in enumerate(events, start=1)
    ]
    for item in started:
        item.start()
    runner = Runner(0, events)

    def end():
        runner.call("end")
        for entry in started:
            entry.join()

    atexit.register(end)
    for number in (10, 20):
        runner.call("add", number)


if __name__ == "__main__":
    main()
