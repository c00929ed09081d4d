"""``multiprocessing``'s queues, locks and managers among ranks, which share one real process."""

from __future__ import annotations

import array
import contextlib
import ctypes
import multiprocessing
import multiprocessing.shared_memory as segments
import os
import queue
import threading
from collections.abc import Callable, Iterable
from itertools import count
from multiprocessing import managers, sharedctypes
from multiprocessing.context import BaseContext
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch.multiprocessing

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.python import pipes
from kernbench.torch_bridge.python.locks import SimulatedLock

_Value: Any = vars(managers)["Value"]


class SharedDict(dict[Any, Any]):
    """The result of ``Manager().dict()``."""


class SharedList(list[Any]):
    """The result of ``Manager().list()``."""


class SharedArray(array.array):  # type: ignore[type-arg]
    """The result of ``Manager().Array()``."""

    def __new__(cls, typecode: str, values: Iterable[Any], lock: bool = True) -> Self:
        return super().__new__(cls, typecode, values)


class SharedObjects(managers.SyncManager):
    """A manager whose objects are passed without copies or proxies, as through queues."""

    def __init__(self, calls: dict[str, Callable[..., Any]]) -> None:
        # The base class's constructor would prepare to start a server.
        self.__dict__.update(
            calls,
            dict=SharedDict,
            list=SharedList,
            Array=SharedArray,
            Namespace=managers.Namespace,
            Value=_Value,
        )

    def start(self, initializer: Any = None, initargs: Iterable[Any] = ()) -> None:
        """Call the initializer: there is nothing else to start."""
        if initializer is not None:
            initializer(*initargs)

    def shutdown(self) -> None:  # type: ignore[override]
        """Accept it: nothing has been started."""

    def join(self, timeout: float | None = None) -> None:
        """Accept it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


SHARED_OBJECTS = (SharedDict, SharedList, SharedArray, SharedObjects, managers.Namespace, _Value)
"""Types of objects that ranks share instead of copying."""


_runs = count(1)
_getpid = os.getpid


def install_segments(patches: Patches) -> None:
    """Let names of shared memory be those of one host of one run: others may use them, too."""
    memory: Any = vars(segments)["_posixshmem"]
    tracker: Any = vars(segments)["resource_tracker"]
    run = f"kb{_getpid()}.{next(_runs)}"
    left: set[str] = set()

    def real(name: str) -> str:
        process = HERE.process
        if process is None or HERE.is_foreign:
            return name
        return f"/{run}.{process.node}.{name.removeprefix('/')}"

    def shm_open(name: str, flags: int, *args: Any, **kwargs: Any) -> int:
        opened: int = memory.shm_open(real(name), flags, *args, **kwargs)
        if flags & os.O_CREAT:
            left.add(real(name))
        return opened

    def shm_unlink(name: str) -> None:
        memory.shm_unlink(real(name))
        left.discard(real(name))

    def unlink_rest() -> None:
        # As Python's own tracker does for what a program leaves behind.
        for name in left:
            with contextlib.suppress(OSError):
                memory.shm_unlink(name)

    def track(function: Any) -> Any:
        return lambda name, kind: None if HERE.process is not None else function(name, kind)

    tracking = SimpleNamespace(
        register=track(tracker.register), unregister=track(tracker.unregister)
    )
    patches.set(segments, "_posixshmem", SimpleNamespace(shm_open=shm_open, shm_unlink=shm_unlink))
    patches.set(segments, "resource_tracker", tracking)
    patches.on_close(unlink_rest)


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
