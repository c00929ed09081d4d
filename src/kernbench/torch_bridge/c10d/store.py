"""The key-value store through which processes find each other; waiting yields to others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError, QueueEmptyError
from torch.distributed.rendezvous import _rendezvous_handlers, _rendezvous_helper

from kernbench.clock import Handle, Simulation, rank_lines
from kernbench.errors import KernbenchError
from kernbench.runtime_api import Action
from kernbench.torch_bridge.processes.host import to_ps
from kernbench.torch_bridge.processes.process import current

_TIMEOUT = timedelta(minutes=30)
_FIRST_FREE_PORT = 32768
"""The first of Linux's ports that processes take without asking for one."""


class StoreTimeoutError(KernbenchError, DistStoreError):
    """A key was not set in time."""


class _KeyWait(Handle):
    """Ends when all awaited keys are set, or the wait has timed out."""

    def __init__(self, simulation: Simulation, keys: Sequence[str], timeout_ps: int) -> None:
        super().__init__(simulation.env, self.label_of(keys))
        self.keys = keys
        self.deadline_ps = simulation.now_ps + timeout_ps
        self._simulation = simulation
        self._timeout_ps = timeout_ps
        self.is_over = False

    @staticmethod
    def label_of(keys: Sequence[str]) -> str:
        """Return how a wait for keys is named."""
        return f"store.wait({', '.join(map(repr, keys))})"

    def give_up(self) -> None:
        """End it with an error."""
        if not self.is_over:
            lines = rank_lines(self._simulation)
            timeout = f"{self._timeout_ps / 10**12:g} s"
            head = f"{self.label} timed out after {timeout}; not set:"
            missing = ", ".join(map(repr, self.keys))
            self.error = StoreTimeoutError("\n".join([f"{head} {missing}:", *lines]))
            self.end()

    def end(self) -> None:
        """Resume whoever waits."""
        self.is_over = True
        self._simulation.idling.met(self)
        self._simulation.wake(self)


class SharedValues:
    """The values of one store, and the waits for keys that are not set yet."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, list[bytes]] = {}
        self._waits: list[_KeyWait] = []

    def put(self, key: str, value: bytes) -> None:
        """Set a value, and resume those who wait for it."""
        self.values[key] = value
        keeper = current().session.run.keeper
        if keeper is not None:
            keeper.put(Action.SET_KEY, keeper.label(f"{id(self)} {key}"))
        self._resume()

    def push(self, key: str, value: bytes) -> None:
        """Append a value to a queue, and resume those who wait for it."""
        keeper = current().session.run.keeper
        if keeper is not None:
            keeper.refused[f"store.queue_push({key!r})"] = None
        self.queues.setdefault(key, []).append(value)
        self._resume()

    def _resume(self) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.is_over:
                continue
            if self.has(wait.keys):
                wait.end()
            else:
                self._waits.append(wait)

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set, or queues with something in them."""
        return all(key in self.values or self.queues.get(key) for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta, is_asked: bool) -> None:
        """Block the calling rank until all keys are set.

        A timeout that the program passed is raised when it is due; with the store's default
        timeout, a wait that nothing can end is a deadlock at once.

        Raises:
            StoreTimeoutError: They were not set in time.
        """
        process = current()
        simulation, keeper = process.session.run.simulation, process.session.run.keeper
        if keeper is not None:
            names = tuple([keeper.label(f"{id(self)} {key}") for key in keys])
            label = keeper.label(_KeyWait.label_of(keys))
            keeper.put(Action.WAIT_KEYS, keeper.number_of(names), label)
            if is_asked:
                keeper.refused[f"{_KeyWait.label_of(keys)} has a timeout of its own"] = None
        if self.has(keys):
            return
        process.host.reach()
        if self.has(keys):
            # They were set meanwhile.
            return
        wait = _KeyWait(simulation, keys, to_ps(timeout))
        self._waits.append(wait)
        simulation.idling.limit(wait)
        if is_asked and not simulation.wait_at_most(wait, to_ps(timeout)):
            wait.give_up()
        simulation.wait(wait)


class ProcessStore(Store):
    """One process's end of a store, with the interface of ``torch.distributed.Store``."""

    def __init__(self, shared: SharedValues) -> None:
        super().__init__()
        self._shared = shared
        self._timeout = _TIMEOUT
        # C++ wraps stores in others, and does not keep the Python half of this one alive.
        current().kept.add(self)

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._shared.put(key, _bytes(value))

    def get(self, key: str) -> bytes:
        self._shared.wait([key], self._timeout, is_asked=False)
        return self._shared.values[key]

    def add(self, key: str, amount: int) -> int:
        total = int(self._shared.values.get(key, b"0")) + amount
        self._shared.put(key, str(total).encode())
        return total

    def append(self, key: str, value: str | bytes) -> None:
        self._shared.put(key, self._shared.values.get(key, b"") + _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        data = self._shared.values.get(key)
        if data == _bytes(expected) or (data is None and not expected):
            self._shared.put(key, _bytes(desired))
            return _bytes(desired)
        return _bytes(expected) if data is None else data

    def check(self, keys: Sequence[str]) -> bool:
        if not self._shared.has(keys):
            current().host.glance("store.check")
        return self._shared.has(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        # PyTorch passes the store's own timeout where the program gave none.
        is_asked = timeout not in (None, self._timeout)
        self._shared.wait(list(keys), timeout or self._timeout, is_asked)

    def delete_key(self, key: str) -> bool:
        return self._shared.values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._shared.values)

    def list_keys(self) -> list[str]:
        return sorted(self._shared.values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._shared.push(key, _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        queues = self._shared.queues
        while not queues.get(key):
            if not block:
                raise QueueEmptyError("queue is empty")
            # Another process may take what has come before this one goes on.
            self._shared.wait([key], self._timeout, is_asked=False)
        return queues[key].pop(0)

    def queue_len(self, key: str) -> int:
        return len(self._shared.queues.get(key, ()))

    def has_extended_api(self) -> bool:
        return True

    getNumKeys = num_keys  # noqa: N815 - C++ asks by these names
    deleteKey = delete_key  # noqa: N815
    queuePush, queuePop, queueLen = queue_push, queue_pop, queue_len  # noqa: N815

    def clone(self) -> ProcessStore:
        return ProcessStore(self._shared)


class HashStore(ProcessStore):
    """Replaces ``torch.distributed.HashStore``, which the threads of a process share."""

    def __init__(self) -> None:
        super().__init__(SharedValues())


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class TCPStore(ProcessStore):
    """Replaces ``torch.distributed.TCPStore``: the calling process's end of an address's store.

    The master waits for as many processes as it is told of, itself among them, and takes a port
    that no other store has where it is given 0.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta | None = None,
        wait_for_workers: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.host = host_name
        self.port = port or _FIRST_FREE_PORT + len(current().session.stores)
        place = f"tcp {host_name}:{self.port}"
        super().__init__(_values_at(place))
        workers = ProcessStore(_values_at(f"{place} workers"))
        if timeout is not None:
            self.set_timeout(timeout)
            workers.set_timeout(timeout)
        if wait_for_workers and world_size is not None and world_size > 0:
            workers.set(f"worker {workers.num_keys() + 1} of {host_name}:{self.port}", "")
            if is_master:
                # One by one, so that an error names those that are missing.
                for index in range(world_size):
                    workers.wait([f"worker {index + 1} of {host_name}:{self.port}"])


class FileStore(ProcessStore):
    """Replaces ``torch.distributed.FileStore``, and writes no file."""

    def __init__(self, file_name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(_values_at(f"file {file_name}"))
        self.path = file_name


def _values_at(place: str) -> SharedValues:
    process = current()
    key = f"{process.state.spawn_id} {place}"
    return process.session.stores.setdefault(key, SharedValues())


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    """Yield the store of the calling process, its rank and the number of processes.

    Replaces ``torch.distributed.rendezvous``. The place of the rendezvous (address and port, or
    file) only identifies the store; a scheme that the program has registered finds its own.
    """
    handler = _rendezvous_handlers.get(urlparse(url).scheme)
    if handler is not None and handler.__module__ != _rendezvous_helper.__module__:
        yield from _rendezvous_helper(url, rank, world_size, **kwargs)
        return
    process = current()
    if rank in (-1, None):
        rank = int(os.environ.get("RANK", process.rank))
    if world_size in (-1, None):
        world_size = int(os.environ.get("WORLD_SIZE", process.state.world_size))
    place = url
    if url.startswith("env://"):
        port = os.environ.get("MASTER_PORT", "")
        place += f" {os.environ.get('MASTER_ADDR', '')}:{port}"
    yield ProcessStore(_values_at(place)), rank, world_size
