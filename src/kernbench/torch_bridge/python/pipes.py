"""``multiprocessing.Pipe`` among ranks, which share one real process."""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import io
import multiprocessing.connection
import multiprocessing.pool
import pickle
import select
import selectors
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType
from typing import Any, Self

import numpy as np
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE, current
from kernbench.torch_bridge.python.sockets import SimulatedSocket, WaitingSelector
from kernbench.torch_bridge.python.sockets.channels import Watchable, wait_until

_wait = multiprocessing.connection.wait


@unseen
def received(value: Any) -> Any:
    """Return an object that a process has received, after its host's time for that."""
    process = HERE.process
    if process is not None:
        tensors = {id(tensor) for tensor in _tensors_of(value)}
        process.host.owe_for("message_ps", "message_tensor_ps", len(tensors))
    return value


def _tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a message: of its lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_of(item)
    elif isinstance(value, dict):
        yield from _tensors_of(list(value.values()))


class _Direction(Watchable):
    """The objects under way in one direction of a pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: deque[Any] = deque()
        self.num_writers = 1
        self.num_readers = 1

    @property
    def is_ready(self) -> bool:
        return bool(self.objects) or not self.num_writers


class PipeEnd(multiprocessing.connection.Connection):
    """Replaces ``multiprocessing.connection.Connection``, which programs ask for by its class.

    Objects are passed without pickling, as in queues. A process that receives an end gets its own
    handle of it, so that each can close its handle. Its descriptor is a simulated one.
    """

    _handle = None  # of no file: nothing to close when it is collected
    closed = False  # a property there
    real_fd = None
    _fd = -1

    def __init__(self, reads: _Direction | None, writes: _Direction | None) -> None:
        self._reads = reads
        self._writes = writes

    readable = property(lambda self: self._reads is not None)
    writable = property(lambda self: self._writes is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> PipeEnd:
        self._check()
        if self._reads is not None:
            self._reads.num_readers += 1
        if self._writes is not None:
            self._writes.num_writers += 1
        return PipeEnd(self._reads, self._writes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if HERE.process is not None:
            HERE.process.sockets.pop(self._fd, None)
        if self._reads is not None:
            self._reads.num_readers -= 1
            self._reads.changed()
        if self._writes is not None:
            self._writes.num_writers -= 1
            self._writes.changed()

    def fileno(self) -> int:
        self._check()
        process = current()
        if self._fd < 0:
            self._fd = process.session.network.new_fd(is_of_pipe=True)
        process.sockets[self._fd] = self
        return self._fd

    def send(self, value: Any) -> None:
        self._check()
        if self._writes is None:
            raise OSError("connection is read-only")
        if not self._writes.num_readers:
            raise BrokenPipeError(32, "Broken pipe")
        reach()
        self._writes.objects.append(value)
        self._writes.changed()

    def send_bytes(self, value: Any, offset: int = 0, size: int | None = None) -> None:
        part = bytes(memoryview(value).cast("B"))[offset:]
        self.send(part if size is None else part[:size])

    def recv(self) -> Any:
        self._wait(None, "recv")
        assert self._reads is not None
        if not self._reads.objects:
            raise EOFError
        return self._reads.objects.popleft()

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        value = self.recv()
        data = value if isinstance(value, bytes) else bytes(ForkingPickler.dumps(value))
        if maxlength is not None and len(data) > maxlength:
            self.close()
            raise OSError("bad message length")
        return data

    def poll(self, timeout: float | None = 0.0) -> bool:
        return self._wait(timeout, "poll")

    def _wait(self, timeout_s: float | None, what: str) -> bool:
        """Return whether a read would not block, after a wait for that."""
        self._check()
        reads = self._reads
        if reads is None:
            raise OSError("connection is write-only")
        return wait_until(
            lambda: reads.is_ready, [reads], timeout_s, f"{what} of {self.describe()}"
        )

    # As a file of the process.

    def ready(self) -> int:
        """Return what it is ready for, as ``poll`` says it."""
        reads, writes, events = self._reads, self._writes, 0
        # One of both directions is a pair of sockets, another a pipe.
        if reads is not None:
            ended = select.POLLHUP if writes is None else select.POLLHUP | select.POLLIN
            events |= (select.POLLIN if reads.objects else 0) | (0 if reads.num_writers else ended)
        if writes is not None:
            broken = select.POLLERR if reads is None else select.POLLHUP
            events |= select.POLLOUT | (0 if writes.num_readers else broken)
        return events

    def sources(self) -> Iterator[Watchable]:
        """Yield what changes when it may be ready."""
        return (way for way in (self._reads, self._writes) if way is not None)

    def describe(self) -> str:
        """Return what errors call it."""
        return "an end of a multiprocessing.Pipe"

    def _check(self) -> None:
        if self.closed:
            raise OSError("handle is closed")


def reach() -> None:
    """Let the simulation reach the time of the calling process: what it sends is not there yet."""
    process = HERE.process
    if process is not None and not HERE.is_foreign:
        process.host.reach()


def pipe(duplex: bool = True) -> tuple[PipeEnd, PipeEnd]:
    """``multiprocessing.Pipe``."""
    back = _Direction()
    there = _Direction() if duplex else None
    ends = PipeEnd(back, there), PipeEnd(there, back)
    if HERE.process is not None:
        HERE.process.pipes.update(dict.fromkeys(ends))
    return ends


_PLAIN = frozenset(
    {
        bool, int, float, complex, str, bytes, type(None), type(...), bytearray, list, tuple, dict,
        pickle.PickleBuffer, set, frozenset, range, slice, deque, defaultdict, OrderedDict, Counter,
        datetime.datetime, datetime.date, datetime.timedelta,
    }
)  # fmt: skip
"""Types whose values are copied, with what they contain."""
_OF_CODE = frozenset({functools.partial, MethodType})
"""Types whose values hold code."""
_MOST_BYTES = 1 << 26
"""The most bytes of an array that is copied; larger ones are data, which workers read."""


_OF_PROGRAM = frozenset({"__main__", "__mp_main__"})


class _Copier(pickle.Pickler):
    """Copies plain values and instances of the program's classes; all else stays what it is."""

    def __init__(self, file: io.BytesIO, own: Collection[str], is_sent: bool = False) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._own = own
        self._is_sent = is_sent
        self.kept: list[Any] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        kind = type(value)
        if kind in _PLAIN:
            return None
        if self._is_sent:
            return self._place_of_sent(value, kind)
        if kind is np.ndarray and value.nbytes <= _MOST_BYTES and value.base is None:
            return None if value.dtype != object else self._place(value, value)
        if kind is PipeEnd or kind is PipedQueue or kind is SimulatedSocket:
            # Each process can close its handle.
            return self._place(value, None)
        if isinstance(value, type) or kind.__module__ not in self._own:
            return self._place(value, value)
        return None

    def _place_of_sent(self, value: Any, kind: type) -> int | None:
        """Return the place of what another process has as it is; None for what it finds itself."""
        if isinstance(value, (type, FunctionType)):
            is_found = value.__module__ in self._own and "<" not in value.__qualname__
        else:
            is_found = kind in _OF_CODE or kind.__module__ in self._own
        return None if is_found else self._place(value, value)

    def _place(self, value: Any, kept: Any) -> int:
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self.kept)
            self.kept.append(copy.deepcopy(value) if kept is None else kept)
        return place


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: Sequence[Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, place: int) -> Any:
        return self._kept[place]


def copied(value: Any, own: frozenset[str] = _OF_PROGRAM) -> Any:
    """Return what another process has of a value; ``own`` are modules whose classes are copied."""
    file = io.BytesIO()
    copier = _Copier(file, own)
    copier.dump(value)
    file.seek(0)
    return _Reader(file, copier.kept).load()


def sent(value: Any, own: Collection[str]) -> Callable[[], Any]:
    """Return what gives the process that calls it a value, with code of its own ``own`` modules.

    Classes and functions of these modules, and instances, are found by name there. What cannot be
    sent so is what it is.
    """
    file = io.BytesIO()
    copier = _Copier(file, own, is_sent=True)
    try:
        copier.dump(value)
    except Exception:
        return lambda: value
    return lambda: _Reader(io.BytesIO(file.getvalue()), copier.kept).load()


class PipedQueue:
    """Replaces ``multiprocessing.SimpleQueue``: a pipe, as there."""

    def __init__(self) -> None:
        self._reader, self._writer = pipe(duplex=False)
        self._rlock, self._wlock = threading.Lock(), threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> PipedQueue:
        piped_queue = object.__new__(PipedQueue)
        piped_queue._reader, piped_queue._writer = (
            copy.deepcopy(pipe_end) for pipe_end in (self._reader, self._writer)
        )
        piped_queue._rlock, piped_queue._wlock = self._rlock, self._wlock
        return piped_queue

    def put(self, value: Any) -> None:
        # What cannot be copied goes as it is.
        with contextlib.suppress(Exception):
            value = copied(value)
        self._writer.send(value)

    def get(self) -> Any:
        return self._reader.recv()

    def empty(self) -> bool:
        return not self._reader.poll()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """``multiprocessing.connection.wait``."""
    if HERE.process is None or HERE.is_foreign:
        return list(_wait(object_list, timeout))
    with WaitingSelector() as selector:
        for file in object_list:
            selector.register(file, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout)]


def install(patches: Patches) -> None:
    """Let programs wait for pipes in simulated time."""
    patches.set(multiprocessing.connection, "wait", wait)
    patches.set(multiprocessing.pool, "wait", wait)
    # Only a pickle would unwrap what workers of pools raise.
    patches.set(multiprocessing.pool.Pool, "_wrap_exception", False)
