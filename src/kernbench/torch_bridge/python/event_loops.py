"""Event loops of ``asyncio`` in simulated processes, with timers in simulated time."""

from __future__ import annotations

import asyncio.base_events
import asyncio.selector_events
import asyncio.unix_events
import selectors
import time
from collections.abc import Callable
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.python.locks import WaitingLock
from kernbench.torch_bridge.python.rank_threads import starting

_Loop = asyncio.selector_events.BaseSelectorEventLoop
_init: Any = _Loop.__init__
_write_to_self: Any = _Loop._write_to_self  # type: ignore[attr-defined]
_real_clock = time.monotonic
_LOOK_S = 0.005
"""How long a loop waits in the operating system before other ranks get their turns."""


class _Sleep(WaitingLock):
    label = "what wakes an event loop of asyncio"


class _Selector:
    """The selector of a loop: waits for a time, for other threads, and for the outside.

    If nothing from outside of the run can happen, its waits take no real time. Otherwise simulated
    time follows the real clock, so that a wait for a real process with a deadline is long enough.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self._woken = _Sleep()
        self._woken.acquire()
        self.num_processes = 0
        """How many real processes are waited for by threads outside of the simulation."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def wake(self) -> None:
        """Let the loop see the callbacks that another thread has scheduled."""
        if self._woken.locked():
            self._woken.release()

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready, as ``selectors.BaseSelector.select`` does."""
        if HERE.process is None or HERE.is_foreign:
            return self._real.select(timeout)
        found = self._real.select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        # The loop's own pipe is one of them.
        if len(self._real.get_map()) > 1 or self.num_processes:
            return self._wait_outside(timeout)
        self._woken.acquire(timeout=-1 if timeout is None else timeout)
        return self._real.select(0)

    def _wait_outside(self, timeout: float | None) -> Any:
        began_s = passed_s = _real_clock()
        while True:
            left_s = _LOOK_S if timeout is None else timeout - (passed_s - began_s)
            if left_s <= 0:
                return []
            if found := self._real.select(min(left_s, _LOOK_S)):
                return found
            before_s, passed_s = passed_s, _real_clock()
            if self._woken.acquire(timeout=passed_s - before_s):
                return self._real.select(0)


def install(patches: Patches, clock: Callable[[], float]) -> None:
    """Let programs' loops wait in simulated time; ``clock`` returns it in seconds."""

    def init(loop: Any, selector: Any = None) -> None:
        if HERE.process is not None and not HERE.is_foreign:
            selector = _Selector(selectors.DefaultSelector() if selector is None else selector)
        _init(loop, selector)

    def write_to_self(loop: Any) -> None:
        _write_to_self(loop)
        if isinstance(loop._selector, _Selector) and not HERE.is_foreign:
            loop._selector.wake()

    patches.set_all(_Loop, {"__init__": init, "_write_to_self": write_to_self})
    patches.set(asyncio.base_events.BaseEventLoop, "time", lambda loop: clock())
    for name in ("ThreadedChildWatcher", "_ThreadedChildWatcher"):
        if watcher := getattr(asyncio.unix_events, name, None):
            _install_watcher(patches, watcher)


def _install_watcher(patches: Patches, watcher: Any) -> None:
    """Keep the thread that waits for a loop's real process outside of the simulation.

    Inside it would block the whole run until that process ends.
    """
    add = watcher.add_child_handler

    def add_child_handler(self: Any, pid: int, callback: Any, *args: Any) -> None:
        selector = getattr(asyncio.get_running_loop(), "_selector", None)
        if not isinstance(selector, _Selector):
            add(self, pid, callback, *args)
            return

        def ended(*given: Any) -> None:
            selector.num_processes -= 1
            callback(*given)

        selector.num_processes += 1
        with starting():
            add(self, pid, ended, *args)

    patches.set(watcher, "add_child_handler", add_child_handler)
