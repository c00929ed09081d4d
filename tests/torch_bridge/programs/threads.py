"""Threads of ranks, and what each of them has.

python threads.py CASE [ARGUMENTS]"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist


def current_devices():
    first = torch.cuda.current_device()
    side = torch.cuda.Stream(3)
    torch.cuda.set_device(3)
    torch.cuda.set_stream(side)
    met = threading.Barrier(2)

    def work():
        assert torch.cuda.current_device() == first
        assert torch.cuda.current_stream(3) == torch.cuda.default_stream(3)
        torch.cuda.set_device(2)
        met.wait()
        met.wait()
        assert torch.cuda.current_device() == 2 == torch.ones(1, device="cuda").device.index

    thread = threading.Thread(target=work)
    thread.start()
    met.wait()
    assert torch.cuda.current_device() == 3
    assert torch.cuda.current_stream() == side
    torch.cuda.set_device(1)
    met.wait()
    thread.join()
    assert torch.cuda.current_device() == 1
    assert torch.cuda.current_stream(3) == side


def key_that_is_waited_for():
    rank = int(os.environ["RANK"])
    store = dist.TCPStore("localhost", 1234, 2, rank == 0)
    if rank == 0:
        # Its host is ahead of the others when it begins to wait.
        for _ in range(100):
            torch.ones(4, device="cuda")
        store.wait(["key"])
        assert store.get("key") == b"value"
    else:
        time.sleep(1e-6)
        store.set("key", "value")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
