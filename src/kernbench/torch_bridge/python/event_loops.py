"""Event loops of ``asyncio`` in simulated processes, with timers in simulated time."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.selector_events
import asyncio.unix_events
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.python.rank_threads import starting
from kernbench.torch_bridge.python.sockets import WaitingSelector, Wake

_Loop = asyncio.selector_events.BaseSelectorEventLoop
_init: Any = _Loop.__init__
_write_to_self: Any = _Loop._write_to_self  # type: ignore[attr-defined]


class _Selector(WaitingSelector):
    """The selector of a loop: waits for a time, for files, and for other threads."""

    label = "what wakes an event loop of asyncio"

    def __init__(self) -> None:
        super().__init__()
        self._woken = Wake(self.label)
        self.num_processes = 0
        """How many real processes are waited for by threads outside of the simulation."""

    def wake(self) -> None:
        """Let the loop see the callbacks that another thread has scheduled."""
        self._woken.wake()

    @unseen
    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready, as ``selectors.BaseSelector.select`` does."""
        files = self.files()
        if HERE.process is None or HERE.is_foreign:
            return self.keys_of(files.real(timeout))
        if timeout is not None and timeout <= 0 and not files.has_simulated:
            real = files.real()
        # The loop's own pipe is one of them.
        elif len(files.real_fds) > 1 or self.num_processes:
            real = files.wait_outside(timeout, self._woken)
        else:
            real = files.wait_inside(timeout, self.label, self._woken)
        return self.keys_of(real)


def install(patches: Patches, clock: Callable[[], float]) -> None:
    """Let programs' loops wait in simulated time; ``clock`` returns it in seconds."""

    def init(loop: Any, selector: Any = None) -> None:
        if HERE.process is None or HERE.is_foreign:
            _init(loop, selector)
            return
        # Its own pipe is real: other threads of the real process write to it, too.
        with starting():
            _init(loop, _Selector())

    def write_to_self(loop: Any) -> None:
        _write_to_self(loop)
        if isinstance(loop._selector, _Selector) and not HERE.is_foreign:
            loop._selector.wake()

    patches.set_all(_Loop, __init__=init, _write_to_self=write_to_self)
    patches.set(asyncio.base_events.BaseEventLoop, "time", lambda loop: clock())
    for name in ("ThreadedChildWatcher", "_ThreadedChildWatcher"):
        if watcher := getattr(asyncio.unix_events, name, None):
            _install_watcher(patches, watcher)


def wake_running() -> None:
    """Let the loop of the calling thread look at its own pipe, which a signal has written to."""
    selector = getattr(asyncio._get_running_loop(), "_selector", None)
    if isinstance(selector, _Selector):
        selector.wake()


IN_C = "uvloop"
"""A package of loops in C, which would wait in the operating system."""


def patch_loops_in_c(module: ModuleType, patches: Patches) -> None:
    """Let programs that ask for loops in C have those of asyncio."""

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if HERE.process is not None:
                HERE.process.session.has_loops_in_c = True
            return function(*args, **kwargs)

        return call

    instead: dict[str, Any] = {
        "new_event_loop": noted(asyncio.SelectorEventLoop),
        "Loop": asyncio.SelectorEventLoop,
        "run": noted(asyncio.run),
        "install": lambda: None,
        "EventLoopPolicy": asyncio.DefaultEventLoopPolicy,
    }
    patches.set_all(
        module, {name: value for name, value in instead.items() if hasattr(module, name)}
    )


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

        def ended(*value: Any) -> None:
            selector.num_processes -= 1
            callback(*value)

        selector.num_processes += 1
        with starting():
            add(self, pid, ended, *args)

    patches.set(watcher, "add_child_handler", add_child_handler)
