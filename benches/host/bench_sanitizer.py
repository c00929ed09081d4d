"""Question: how many times slower is replay with every check than without?

Each case replays one trace with and without the sanitizer alternately in one process, BLAS on one
thread, and prints the ratio of the best times. ADR-0020 quotes them; there is no goal.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kernbench
from kernbench import ops

RNG = np.random.default_rng(0)


def best_of(torch: Any, work: Callable[[Any], Any], seconds: float = 2.0) -> float:
    """Return the best time of ``work`` and of the replay that it causes."""
    work(torch)
    torch.run.replay_queue.drain()
    times = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times) < 3:
        work(torch)
        torch.ahbm.synchronize()
        start = time.perf_counter()
        torch.run.replay_queue.drain()
        times.append(time.perf_counter() - start)
    return min(times)


def compare(name: str, build: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Print the times of replay with and without the sanitizer."""
    result = []
    for check in (False, True):
        with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=check) as torch:
            result.append(best_of(torch, build(torch)))
    plain, checked = (seconds * 1e3 for seconds in result)
    print(f"\n  {name}: {plain:.2f} ms, checked {checked:.2f} ms, ratio {checked / plain:.1f}")


def test_matmul() -> None:
    def build(torch: Any) -> Callable[[Any], Any]:
        a, b = (
            torch.from_numpy(RNG.standard_normal((512, 512)).astype(np.float16)) for _ in range(2)
        )
        return lambda _: a @ b

    compare("matmul f16 512^3", build)


def test_softmax() -> None:
    def build(torch: Any) -> Callable[[Any], Any]:
        x = torch.from_numpy(RNG.standard_normal((4096, 1024)).astype(np.float32))
        return lambda _: ops.softmax(x)

    compare("softmax f32 4096 x 1024", build)


def test_add() -> None:
    def build(torch: Any) -> Callable[[Any], Any]:
        x = torch.from_numpy(RNG.standard_normal(1 << 20).astype(np.float32))
        return lambda _: x + x

    compare("add f32 1M", build)
