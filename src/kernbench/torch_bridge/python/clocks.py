"""The clocks of a host: programs that time themselves see modeled time (ADR-0119)."""

from __future__ import annotations

import concurrent.futures._base as futures
import ctypes
import datetime
import gc
import os
import queue
import sched
import sys
import threading
import time
import timeit
from collections.abc import Callable
from functools import wraps
from operator import methodcaller
from types import SimpleNamespace
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.host import Host
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.python import event_loops

_PS_PER_NS = 1000
_PS_PER_S = 10**12
_NS_PER_S = 10**9
_DAY_NS = 24 * 3600 * _NS_PER_S
_localtime = time.localtime
_sleep, _sched_yield = time.sleep, os.sched_yield


class SimulatedClock:
    """A clock that shows the calling rank's host time, starting from ``start_ns``.

    Threads that belong to no simulated process see the real one.
    """

    def __init__(
        self,
        real_ns: Callable[[], int],
        start_ns: int,
        look: Callable[[Host], int] = methodcaller("look_at_clock"),
    ) -> None:
        self._real_ns = real_ns
        self._start_ns = start_ns
        self._look = look

    def nanoseconds(self) -> int:
        """Return its time in ns, as ``time.time_ns`` does for the real clock."""
        process = HERE.process
        if process is None or HERE.is_foreign:
            return self._real_ns()
        host = process.host
        now_ps = self._look(host)
        if host.alarm_ps is not None and host.now_ps >= host.alarm_ps:
            host.rings()
        return self._start_ns + now_ps // _PS_PER_NS

    def seconds(self) -> float:
        """Return its time in seconds, as ``time.time`` does for the real clock."""
        return self.nanoseconds() / _NS_PER_S


class Clocks:
    """The clocks of a run: dates start at the present second, the others at a fixed time."""

    def __init__(self) -> None:
        self.wall = SimulatedClock(time.time_ns, time.time_ns() // _NS_PER_S * _NS_PER_S)
        # As on a machine that has been up for a while, so that no hourly timer of a program is due.
        self.monotonic = SimulatedClock(time.monotonic_ns, _DAY_NS)
        self.counter = SimulatedClock(time.perf_counter_ns, _DAY_NS)
        self.process = SimulatedClock(time.process_time_ns, 0, methodcaller("look_at_work"))
        self.thread = SimulatedClock(time.thread_time_ns, 0, methodcaller("look_at_work"))

    def by_number(self) -> dict[int, SimulatedClock]:
        """Return the clocks of ``time.clock_gettime`` that the system has, by their numbers."""
        named = {
            "REALTIME": self.wall,
            "TAI": self.wall,
            "MONOTONIC": self.monotonic,
            "MONOTONIC_RAW": self.monotonic,
            "BOOTTIME": self.monotonic,
            "UPTIME_RAW": self.monotonic,
            "PROCESS_CPUTIME_ID": self.process,
            "THREAD_CPUTIME_ID": self.thread,
        }
        numbers = {getattr(time, f"CLOCK_{name}", None): clock for name, clock in named.items()}
        return {number: clock for number, clock in numbers.items() if number is not None}


def simulated_sleep(seconds: float) -> None:
    """``time.sleep`` in simulated time."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        _sleep(seconds)
    elif seconds < 0:
        raise ValueError("sleep length must be non-negative")
    else:
        process.host.sleep(int(seconds * _PS_PER_S))


@unseen
def simulated_yield() -> None:
    """``os.sched_yield`` in simulated time."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        _sched_yield()
    else:
        process.host.give_way("os.sched_yield")


def install(patches: Patches) -> None:
    """Replace the clocks by which programs time themselves."""
    clocks = Clocks()
    for name, clock in (
        ("time", clocks.wall),
        ("monotonic", clocks.monotonic),
        ("perf_counter", clocks.counter),
        ("process_time", clocks.process),
        ("thread_time", clocks.thread),
    ):
        _replace(patches, time, name, clock.seconds)
        _replace(patches, time, f"{name}_ns", clock.nanoseconds)
    _keep_for_pythons_library(patches, "monotonic")
    _keep_for_pythons_library(patches, "monotonic_ns")
    _replace(patches, time, "sleep", simulated_sleep)
    _keep_for_pythons_library(patches, "sleep")
    patches.set(timeit, "default_timer", time.perf_counter)
    patches.set(os, "sched_yield", simulated_yield)
    _install_by_number(patches, clocks)
    _install_dates(patches, clocks.wall)
    # Python's own modules, whose waits are simulated.
    waits = unseen(clocks.monotonic.seconds)
    patches.set(threading, "_time", waits)
    patches.set(queue, "time", waits)
    patches.set(futures, "time", SimpleNamespace(monotonic=waits))
    event_loops.install(patches, waits)
    patches.set(sched.scheduler.__init__, "__defaults__", (waits, simulated_sleep))


def _replace(patches: Patches, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a function of C by one of the same name, which some libraries check."""
    real = getattr(owner, name)

    def replaced(*args: Any) -> Any:
        try:
            return function(*args)
        except (TypeError, ValueError, OverflowError):
            # Invalid arguments raise Python's own errors.
            try:
                real(*args)
            except (TypeError, ValueError, OverflowError) as refusal:
                own = refusal
            else:
                raise
        raise type(own)(*own.args)

    patches.set(owner, name, wraps(real)(unseen(replaced)))


def _keep_for_pythons_library(patches: Patches, name: str) -> None:
    """Let Python's own modules see the real clock, as they wait for events outside of the run.

    So do event loops, and pipes between real processes.
    """
    simulated = getattr(time, name)
    real = simulated.__wrapped__

    def chosen(*args: Any) -> Any:
        caller = sys._getframe(2)  # behind what leaves this out of the count
        package = caller.f_globals.get("__name__", "").partition(".")[0]
        # Only if the caller's code names it: threads and timeit are passed the function to call.
        is_meant = package in sys.stdlib_module_names and name in caller.f_code.co_names
        return real(*args) if is_meant else simulated(*args)

    patches.set(time, name, wraps(real)(unseen(chosen)))


def _install_by_number(patches: Patches, clocks: Clocks) -> None:
    real_s, real_ns, real_times = time.clock_gettime, time.clock_gettime_ns, os.times
    by_number = clocks.by_number()

    def gettime_ns(number: int) -> int:
        clock = by_number.get(number)
        return real_ns(number) if clock is None else clock.nanoseconds()

    def gettime(number: int) -> float:
        return gettime_ns(number) / _NS_PER_S if number in by_number else real_s(number)

    def times() -> Any:
        if HERE.process is None or HERE.is_foreign:
            return real_times()
        worked, elapsed = clocks.process.seconds(), clocks.monotonic.seconds()
        return type(real_times())((worked, 0.0, 0.0, 0.0, elapsed))

    _replace(patches, time, "clock_gettime", gettime)
    _replace(patches, time, "clock_gettime_ns", gettime_ns)
    _replace(patches, os, "times", times)


def _install_dates(patches: Patches, wall: SimulatedClock) -> None:
    """Let functions whose default time is the present use the simulated date."""

    def of_seconds(name: str) -> None:
        real = getattr(time, name)

        def at_present(seconds: float | None = None) -> Any:
            return real(wall.seconds() if seconds is None else seconds)

        _replace(patches, time, name, at_present)

    def present() -> time.struct_time:
        return _localtime(wall.seconds())

    def of_fields(name: str) -> None:
        real = getattr(time, name)
        num_before = 1 if name == "strftime" else 0

        def at_present(*args: Any) -> Any:
            return real(*args, *([present()] if len(args) == num_before else []))

        _replace(patches, time, name, at_present)

    for name in ("localtime", "gmtime", "ctime"):
        of_seconds(name)
    for name in ("strftime", "asctime"):
        of_fields(name)

    def now(cls: Any, tz: Any = None) -> Any:
        return cls.fromtimestamp(wall.seconds(), tz)

    def utcnow(cls: Any) -> Any:
        return cls.fromtimestamp(wall.seconds(), datetime.UTC).replace(tzinfo=None)

    dates: dict[str, Any] = {
        function.__name__: classmethod(unseen(function)) for function in (now, utcnow)
    }
    # ``today`` calls ``time.time``. These two call C, and the class may be imported by name.
    _set_in_c(patches, datetime.datetime, dates)


def _set_in_c(patches: Patches, owner: type, values: dict[str, Any]) -> None:
    """Replace attributes of a class written in C, which Python does not permit directly."""
    (attributes,) = gc.get_referents(vars(owner))
    before = {name: attributes[name] for name in values}

    def put(chosen: dict[str, Any]) -> None:
        attributes.update(chosen)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))

    put(values)
    patches.on_close(put, before)
