"""``multiprocessing``'s queues and locks among ranks, which share one real process."""

from __future__ import annotations

import ctypes
import multiprocessing
import queue
import threading
from collections.abc import Callable
from multiprocessing import sharedctypes
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import Any

import torch.multiprocessing

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.python import pipes
from kernbench.torch_bridge.python.locks import SimulatedLock
from kernbench.torch_bridge.python.shared_objects import (
    SHARED_OBJECTS,
    SharedObjects,
    install_segments,
)

# The module's functions belong to a context that is made at import.
_OWNERS = (multiprocessing, torch.multiprocessing)
_SHARED = (
    *SHARED_OBJECTS, queue.Queue, pipes.PipedQueue, SimulatedLock, threading._RLock,
    threading.Condition, threading.Semaphore, threading.Event, threading.Barrier,
    sharedctypes.SynchronizedBase, ctypes._SimpleCData, ctypes.Array,
)  # fmt: skip


class RankQueue(queue.Queue[Any]):
    """A queue between ranks, or between them and the process that spawned them.

    Objects are passed without pickling: device tensors stay on their devices.
    """

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """``Queue.put``, at the time of the process that calls it."""
        pipes.reach()
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """``Queue.get``, likewise."""
        pipes.reach()
        return pipes.received(super().get(block, timeout))

    def close(self) -> None:
        """Accept it: there is no feeder thread to end."""

    join_thread = cancel_join_thread = close


def is_shared(value: object) -> bool:
    """Return whether ranks that receive a value get the value itself, not a copy."""
    return isinstance(value, _SHARED)


def install(patches: Patches) -> None:
    """Let queues and locks between ranks wait in simulated time."""
    calls: dict[str, Callable[..., Any]] = {
        "Queue": lambda maxsize=0: RankQueue(maxsize),
        "JoinableQueue": lambda maxsize=0: RankQueue(maxsize),
        "SimpleQueue": pipes.PipedQueue,
        "Lock": lambda: threading.Lock(),
        "RLock": lambda: threading.RLock(),
        "Condition": lambda lock=None: threading.Condition(lock),
        "Semaphore": lambda value=1: threading.Semaphore(value),
        "BoundedSemaphore": lambda value=1: threading.BoundedSemaphore(value),
        "Event": lambda: threading.Event(),
        "Barrier": lambda *args, **kwargs: threading.Barrier(*args, **kwargs),
        "Pipe": pipes.pipe,
    }
    pipes.install(patches)
    of_managers = {name: make for name, make in calls.items() if name != "Pipe"}
    of_managers["Pool"] = lambda *args, **kwargs: multiprocessing.Pool(*args, **kwargs)
    calls["Manager"] = lambda: SharedObjects(of_managers)
    for name, make in calls.items():
        patches.set(BaseContext, name, _of_context(make))
        for owner in _OWNERS:
            patches.set(owner, name, make)
    install_segments(patches)


ALIKE = "multiprocess"
"""A package that is multiprocessing with another pickle: datasets starts its workers by it."""


def patch_alike(module: ModuleType, patches: Patches) -> None:
    """Let a package that is like ``multiprocessing`` be it."""
    for name in multiprocessing.__all__:
        if hasattr(module, name):
            patches.set(module, name, getattr(multiprocessing, name))


def _of_context(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: make(*args, **kwargs)
