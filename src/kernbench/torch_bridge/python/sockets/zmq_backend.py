"""The back end that pyzmq finds in a run in place of libzmq; all else is pyzmq's own Python."""

from __future__ import annotations

import builtins
import errno
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Self
from weakref import WeakValueDictionary

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.python.sockets.handles import close
from kernbench.torch_bridge.python.sockets.polling import FilesWait
from kernbench.torch_bridge.python.sockets.zmq_options import EFSM, ETERM, Option, ZmqFailureError
from kernbench.torch_bridge.python.sockets.zmq_sockets import ZmqContextCore, ZmqCore

_VERSION = (4, 3, 5)
_MOST_PATH = 107
_WORDS = {
    EFSM: "Operation cannot be accomplished in current state",
    ETERM: "Context was terminated",
    errno.EHOSTUNREACH: "Host unreachable",
}
_OWN_PART = "zmq.backend.cython"
_shadowed: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Contexts and sockets by the numbers that pyzmq takes for their addresses."""


@contextmanager
def _raising() -> Iterator[None]:
    """Raise what failed as pyzmq's own errors, of the module that the process has."""
    try:
        yield
    except ZmqFailureError as failure:
        errors: Any = sys.modules["zmq.error"]
        kind = {errno.EAGAIN: errors.Again, ETERM: errors.ContextTerminated}.get(
            failure.number, errors.ZMQError
        )
        error = kind(failure.number)
    else:
        return
    raise error


class ZmqFrame(bytes):
    """``zmq.Frame``."""

    more = False
    tracker: Any = None

    def __new__(cls, data: Any = None, track: bool = False, *_: Any, **__: Any) -> Self:
        if isinstance(data, str):
            raise TypeError("Str objects not allowed. Only: bytes, buffer interfaces.")
        result = super().__new__(cls, b"" if data is None else memoryview(data).tobytes())
        result.tracker = sys.modules["zmq"]._FINISHED_TRACKER if track else None
        return result

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def buffer(self) -> memoryview:
        return memoryview(self)

    @property
    def bytes(self) -> builtins.bytes:
        return builtins.bytes(self)

    def fast_copy(self) -> Self:
        return self

    def get(self, option: Any) -> Any:
        if option == Option.RCVMORE or option == 1:
            return int(self.more)
        errors: Any = sys.modules["zmq.error"]
        raise errors.ZMQError(errno.EINVAL)

    def set(self, option: Any, value: Any) -> None:
        self.get(None)


class ZmqContext:
    """``zmq.Context`` without its Python."""

    core: Any = None
    closed = False

    def __init__(self, io_threads: int = 1, shadow: int = 0) -> None:
        self.core = _shadowed[shadow] if shadow else ZmqContextCore()
        _shadowed[id(self.core)] = self.core

    @property
    def underlying(self) -> int:
        return id(self.core)

    def term(self) -> None:
        if not self.closed:
            self.closed = True
            self.core.end()

    def set(self, option: int, optval: int) -> None:
        if self.closed:
            raise RuntimeError("Context has been destroyed")
        self.core.options[int(option)] = optval

    def get(self, option: int) -> int:
        if self.closed:
            raise RuntimeError("Context has been destroyed")
        return self.core.options.get(int(option), {1: 1, 2: 1023}.get(int(option), 0))


def _of_address(name: str) -> Any:
    """Return a method of sockets that takes an address."""

    def call(self: ZmqSocket, addr: Any) -> None:
        with _raising():
            getattr(self._open(), name)(_text(addr))

    return call


class ZmqSocket:
    """``zmq.Socket`` without its Python."""

    core: Any = None
    context: Any = None
    copy_threshold: Any = None

    def __init__(
        self,
        context: Any = None,
        socket_type: int = -1,
        shadow: int = 0,
        copy_threshold: Any = None,
    ) -> None:
        self.context = context
        self.copy_threshold = copy_threshold
        with _raising():
            self.core = _shadowed[shadow] if shadow else ZmqCore(context.core, socket_type)
        _shadowed[id(self.core)] = self.core

    @property
    def underlying(self) -> int:
        return id(self.core)

    @property
    def closed(self) -> bool:
        return self.core is None or self.core.is_closed

    _closed = closed

    def close(self, linger: int | None = None) -> None:
        if not self.closed:
            close(self.core)

    def _open(self) -> ZmqCore:
        if self.closed:
            raise ZmqFailureError(errno.ENOTSOCK)
        core: ZmqCore = self.core
        return core

    def set(self, option: int, optval: Any) -> None:
        if isinstance(optval, str):
            raise TypeError("unicode not allowed, use setsockopt_string")
        number = int(option)
        with _raising():
            core = self._open()
            if number in (Option.SUBSCRIBE, Option.UNSUBSCRIBE):
                core.subscribe(optval, number == Option.SUBSCRIBE)
            elif number in core.options:
                if not isinstance(optval, type(core.options[number])):
                    kind = type(core.options[number]).__name__
                    raise TypeError(f"expected {kind}, got: {optval!r}")
                core.options[number] = optval
            else:
                raise UnsupportedTorchError(
                    f"option {getattr(option, 'name', option)} of a socket of ZeroMQ is not "
                    "simulated; leave it out in a run, as messages reach processes of the run alone"
                )

    def get(self, option: int) -> Any:
        with _raising():
            core = self._open()
            match int(option):
                case Option.TYPE:
                    return core.kind
                case Option.FD:
                    return core.fd
                case Option.EVENTS:
                    return core.events()
                case Option.RCVMORE:
                    return int(bool(core.parts))
                case Option.LAST_ENDPOINT:
                    return core.last_endpoint
                case number if number in core.options:
                    return core.options[number]
            raise ZmqFailureError(errno.EINVAL)

    bind, connect, unbind, disconnect = map(
        _of_address, ("bind", "connect", "unbind", "disconnect")
    )

    def monitor(self, addr: Any, events: int = 0) -> None:
        raise UnsupportedTorchError("monitors of ZeroMQ's sockets are not simulated")

    join = leave = monitor

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if isinstance(data, str):
            raise TypeError("unicode not allowed, use send_string")
        part = memoryview(data).tobytes()
        with _raising():
            self._open().send(part, int(flags))
        if copy and not isinstance(data, ZmqFrame):
            return None
        return sys.modules["zmq"]._FINISHED_TRACKER

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        with _raising():
            part = self._open().receive(int(flags))
        if copy:
            return part
        frame = sys.modules["zmq"].Frame(part, track=track)
        frame.more = bool(self.core.parts)
        return frame

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        part = self.recv(flags)
        size = min(len(part), nbytes or len(view))
        view[:size] = part[:size]
        return len(part)


def _text(address: Any) -> str:
    if not isinstance(address, (str, bytes)):
        raise TypeError(f"expected str, got: {address!r}")
    text = address.decode() if isinstance(address, bytes) else address
    if "://" not in text:
        raise ZmqFailureError(errno.EINVAL)
    return text


def zmq_poll(sockets: Any, timeout: int = -1) -> list[tuple[Any, int]]:
    """``zmq.zmq_poll``: wait for sockets of ZeroMQ and for files; the timeout is in ms."""
    asked: dict[int, int] = {}
    by_fd: dict[int, Any] = {}
    with _raising():
        for zmq_socket, events in sockets:
            if isinstance(zmq_socket, ZmqSocket):
                fd = zmq_socket._open().level_fd
                by_fd[fd] = zmq_socket
            elif isinstance(zmq_socket, int) or hasattr(zmq_socket, "fileno"):
                fd = zmq_socket if isinstance(zmq_socket, int) else zmq_socket.fileno()
                by_fd[fd] = fd
            else:
                raise TypeError(
                    "Socket must be a 0MQ socket, an integer fd or have a fileno() method: "
                    f"{zmq_socket!r}"
                )
            asked[fd] = asked.get(fd, 0) | (
                (select.POLLIN if events & 1 else 0) | (select.POLLOUT if events & 2 else 0)
            )
        if not asked:
            return []
        ready = FilesWait(asked).wait(None if timeout < 0 else timeout / 1000, "poll")
    return [(by_fd[fd], _from_poll(events)) for fd, events in ready]


def _from_poll(events: int) -> int:
    failed = events & (select.POLLERR | select.POLLHUP)
    can_read, can_write = events & select.POLLIN, events & select.POLLOUT
    return (1 if can_read else 0) | (2 if can_write else 0) | (4 if failed else 0)


def proxy(frontend: Any, backend: Any, capture: Any = None) -> None:
    """``zmq.proxy``: pass messages on in both directions, until the context ends."""
    others = {frontend: backend, backend: frontend}
    while True:
        for source, _ in zmq_poll([(other, 1) for other in others], -1):
            message = source.recv_multipart()
            for target in (others[source], capture):
                if target is not None:
                    target.send_multipart(message)


def _not_simulated(*_: Any, **__: Any) -> Any:
    raise UnsupportedTorchError("this part of ZeroMQ (security, steered proxies) is not simulated")


def _backend() -> ModuleType:
    backend = ModuleType(_OWN_PART)
    values: dict[str, Any] = {
        "Context": ZmqContext,
        "Socket": ZmqSocket,
        "Frame": ZmqFrame,
        "Message": ZmqFrame,
        "zmq_poll": zmq_poll,
        "proxy": proxy,
        "strerror": lambda number: _WORDS.get(number) or os.strerror(number),
        "zmq_errno": lambda: 0,
        "zmq_version_info": lambda: _VERSION,
        "has": lambda capability: capability in ("ipc",),
        "IPC_PATH_MAX_LEN": _MOST_PATH,
        "PYZMQ_DRAFT_API": False,
        "_zmq": SimpleNamespace(),
    }
    others = ("proxy_steerable", "curve_keypair", "curve_public", "monitored_queue", "device")
    vars(backend).update(values, **dict.fromkeys(others, _not_simulated))
    return backend


def install(patches: Patches) -> None:
    """Let programs that import ``zmq`` get pyzmq with sockets in simulated time."""
    before = {name: sys.modules.pop(name) for name in _modules()}
    sys.modules[_OWN_PART] = _backend()

    def restore() -> None:
        for name in _modules():
            del sys.modules[name]
        sys.modules.update(before)

    patches.on_close(restore)


def _modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "zmq"]
