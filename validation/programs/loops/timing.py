"""How loops time a step, and say it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds_of(step: Callable[[], object], steps: int = 1, *, waits: bool = False) -> float:
    """Return the mean time of some steps; ``waits`` where the host waits for each one to end."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
        if waits:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def say(seconds: float) -> None:
    """Print the time of a step, as it is read."""
    print(f"step {seconds * 1e3:.4f} ms")
