"""The clocks of a host: what a program finds when it times itself is modeled time (ADR-0092)."""

from __future__ import annotations

import concurrent.futures._base as futures
import queue
import threading
import time
import timeit
from collections.abc import Callable
from types import SimpleNamespace

from kernbench.torch_bridge.patches import Patches
from kernbench.torch_bridge.process import HERE

READING_PS = 100_000
"""What looking at a clock takes, with the little Python around it: time never stands still."""
_PS_PER_NS = 1000
_NS_PER_S = 10**9


class SimulatedClock:
    """A clock that a run begins with where the real one is, and that goes as its hosts' do.

    Threads that belong to no simulated process see the real one.
    """

    def __init__(self, real_ns: Callable[[], int]) -> None:
        self._real_ns = real_ns
        self._start_ns = real_ns()

    def nanoseconds(self) -> int:
        """Return what ``time.time_ns`` does for the real one."""
        process = HERE.process
        if process is None or HERE.is_foreign:
            return self._real_ns()
        return self._start_ns + process.host.look_at_clock(READING_PS) // _PS_PER_NS

    def seconds(self) -> float:
        """Return what ``time.time`` does for the real one."""
        return self.nanoseconds() / _NS_PER_S


def install(patches: Patches) -> None:
    """Let the clocks that programs time themselves by be simulated.

    ``time.monotonic`` stays the real one: by it libraries wait for what is outside of the run. Only
    those whose waits are simulated are given the simulated one.
    """
    wall, process, waits = map(
        SimulatedClock, (time.time_ns, time.perf_counter_ns, time.monotonic_ns)
    )
    patches.set_all(
        time,
        {
            "time": wall.seconds,
            "time_ns": wall.nanoseconds,
            "perf_counter": process.seconds,
            "perf_counter_ns": process.nanoseconds,
        },
    )
    patches.set(timeit, "default_timer", process.seconds)
    patches.set(threading, "_time", waits.seconds)
    patches.set(queue, "time", waits.seconds)
    patches.set(futures, "time", SimpleNamespace(monotonic=waits.seconds))
