"""How loops time a step, and say it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from validation.programs.program import APART_S


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


def benched(op: Callable[[], object]) -> float:
    """Return the seconds of Triton's ``do_bench``, and call what it timed once more, a while later.

    A benchmark leaves nothing in the run; the call says which kernels the time is of.
    """
    import triton

    took_ms: float = triton.testing.do_bench(op)
    time.sleep(2 * APART_S)
    op()
    torch.cuda.synchronize()
    return took_ms / 1e3


def say(seconds: float) -> None:
    """Print the time of a step, as it is read."""
    print(f"step {seconds * 1e3:.4f} ms")
