"""A bench for sweeps: says that it ran, then ends in one of many ways."""

import os
import signal
import time
from pathlib import Path


def run(torch, n: int = 1, mode: str = "fine", log: str = "", pause_s: float = 0.0):
    if log:
        with Path(log).open("a") as file:
            file.write(f"{n}\n")
    time.sleep(pause_s)
    x = torch.zeros(1024 * n, dtype="f32")
    x.numpy()
    print("ran", n)
    if mode == "raises":
        raise ValueError(f"no {n} today")
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "exits":
        os._exit(3)
    if mode == "waits":
        time.sleep(60)
    if mode == "grows":
        held = [b"x" * 10_000_000 for _ in range(400)]
        time.sleep(60 + len(held))
