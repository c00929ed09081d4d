"""``multiprocessing.Manager()`` and ``SharedMemory`` among ranks, which share one real process."""

from __future__ import annotations

import array
import contextlib
import multiprocessing.shared_memory as segments
import os
from collections.abc import Callable, Iterable
from itertools import count
from multiprocessing import managers
from types import SimpleNamespace
from typing import Any, Self

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

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
