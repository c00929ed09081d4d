"""``multiprocessing``'s queues and locks among ranks, which share one real process."""

from __future__ import annotations

import ctypes
import multiprocessing
import queue
import threading
from collections.abc import Callable
from multiprocessing import sharedctypes
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

import torch.multiprocessing

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.python import pipes
from kernbench.torch_bridge.python.locks import SimulatedLock
from kernbench.torch_bridge.python.shared_objects import SHARED_OBJECTS, SharedObjects

# The module's functions belong to a context that is made at import.
_OWNERS = (multiprocessing, torch.multiprocessing)
_SHARED = (
    *SHARED_OBJECTS,
    queue.Queue,
    SimulatedLock,
    threading._RLock,
    threading.Condition,
    threading.Semaphore,
    threading.Event,
    threading.Barrier,
    sharedctypes.SynchronizedBase,
    ctypes._SimpleCData,
    ctypes.Array,
)


class RankQueue(queue.Queue[Any]):
    """A queue between ranks, or between them and the process that spawned them.

    Objects are passed without pickling: device tensors stay on their devices.
    """

    def close(self) -> None:
        """Accept it: there is no feeder thread to end."""

    join_thread = cancel_join_thread = close


def is_shared(value: object) -> bool:
    """Return whether ranks that receive a value get the value itself, not a copy."""
    return isinstance(value, _SHARED)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedTorchError(
            f"multiprocessing.{name} in a simulated process: it would block outside of the "
            "simulation; use multiprocessing.Queue, or torch.distributed"
        )

    return refuse


def install(patches: Patches) -> None:
    """Let queues and locks between ranks wait in simulated time."""
    made: dict[str, Callable[..., Any]] = {
        "Queue": lambda maxsize=0: RankQueue(maxsize),
        "JoinableQueue": lambda maxsize=0: RankQueue(maxsize),
        "SimpleQueue": lambda: RankQueue(),
        "Lock": lambda: threading.Lock(),
        "RLock": lambda: threading.RLock(),
        "Condition": lambda lock=None: threading.Condition(lock),
        "Semaphore": lambda value=1: threading.Semaphore(value),
        "BoundedSemaphore": lambda value=1: threading.BoundedSemaphore(value),
        "Event": lambda: threading.Event(),
        "Barrier": lambda *args, **kwargs: threading.Barrier(*args, **kwargs),
        "Pipe": pipes.pipe,
        "Pool": _refusing("Pool"),
    }
    pipes.install(patches)
    of_managers = {name: make for name, make in made.items() if name != "Pipe"}
    made["Manager"] = lambda: SharedObjects(of_managers)
    for name, make in made.items():
        patches.set(BaseContext, name, _of_context(make))
        for owner in _OWNERS:
            patches.set(owner, name, make)


def _of_context(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: make(*args, **kwargs)
