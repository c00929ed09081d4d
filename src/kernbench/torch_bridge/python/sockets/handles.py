"""A socket as its holder has it: a descriptor with options, simulated or real."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from functools import wraps
from multiprocessing.connection import Connection
from typing import Any, Self

from kernbench.torch_bridge.processes.process import HERE, Process, current
from kernbench.torch_bridge.python.sockets.channels import arrive, wait_until
from kernbench.torch_bridge.python.sockets.endpoints import (
    Endpoint,
    RealSocket,
    SocketNetwork,
    refusal,
)

FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
FLAGS_OF_KIND = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


def network() -> SocketNetwork | None:
    """Return the run's sockets; None where the caller is outside of the simulation."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        return None
    socket_network: SocketNetwork = process.session.network
    return socket_network


def simulated(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method be given the end of a simulated socket; of a real one it is Python's own."""
    real = getattr(RealSocket, method.__name__)

    @wraps(method)
    def call(self: SocketHandle, *args: Any, **kwargs: Any) -> Any:
        end = self._end
        return real(self, *args, **kwargs) if end is None else method(self, end, *args, **kwargs)

    return call


class SocketHandle(socket.socket):
    """A descriptor: simulated in a simulated process, real outside of one."""

    _end: Endpoint | None = None
    _fd = -1
    _timeout: float | None = None

    def __init__(
        self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        sockets = network()
        end = None if sockets is None or fileno is None else current().sockets.get(fileno)
        if sockets is None or (fileno is not None and end is None):
            super().__init__(family, type, proto, fileno)
            return
        family = int(socket.AF_INET if family == -1 else family)
        kind = int(socket.SOCK_STREAM if type == -1 else type)
        plain = kind & ~FLAGS_OF_KIND
        if end is None:
            if family not in FAMILIES or plain not in KINDS:
                super().__init__(family, type, proto, fileno)
                return
            end = Endpoint(sockets, family, plain, 0 if proto == -1 else proto)
        self._io_refs: int = 0
        self._closed: bool = False
        if fileno is None:
            fileno, end.num_handles = sockets.new_fd(), end.num_handles + 1
        self._end, self._fd = end, fileno
        self._timeout = 0.0 if kind & socket.SOCK_NONBLOCK else socket.getdefaulttimeout()
        self._hold(end)

    def _hold(self, end: Endpoint) -> None:
        """Be a descriptor of the calling process, which may have received it from another."""
        current().sockets[self._fd] = end

    # What is real has all of its class in C; what is simulated, the following.

    @property
    def family(self) -> Any:
        return super().family if self._end is None else socket.AddressFamily(self._end.family)

    @property
    def type(self) -> Any:
        return super().type if self._end is None else socket.SocketKind(self._end.kind)

    @property
    def proto(self) -> int:
        return int(super().proto if self._end is None else self._end.proto)

    @property
    def timeout(self) -> float | None:
        return self.gettimeout()

    def fileno(self) -> int:
        if self._end is None:
            return super().fileno()
        if HERE.process is not None:
            self._hold(self._end)
        return self._fd

    def gettimeout(self) -> float | None:
        return super().gettimeout() if self._end is None else self._timeout

    @simulated
    def settimeout(self, end: Endpoint, value: float | None) -> None:
        with RealSocket() as real:
            # What is no timeout raises Python's own errors.
            real.settimeout(value)
            self._timeout = real.gettimeout()

    def setblocking(self, flag: bool) -> None:
        self.settimeout(None if flag else 0.0)

    def getblocking(self) -> bool:
        return self.gettimeout() != 0

    def get_inheritable(self) -> bool:
        return self._end is None and super().get_inheritable()

    @simulated
    def set_inheritable(self, end: Endpoint, inheritable: bool) -> None:
        """Accept it: no real process inherits it."""

    def __del__(self) -> None:
        if self._end is not None and not self._closed:
            self._release()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.dup()

    @simulated
    def dup(self, end: Endpoint) -> Self:
        kind = type(self).__new__(type(self))
        kind._io_refs, kind._closed = 0, False
        kind._end, kind._fd, kind._timeout = end, end.network.new_fd(), self._timeout
        end.num_handles += 1
        return kind

    @simulated
    def detach(self, end: Endpoint) -> int:
        self._closed, self._end = True, None
        fd, self._fd = self._fd, -1
        return fd

    @simulated
    def _real_close(self, end: Endpoint) -> None:
        process = HERE.process
        self._release()
        if process is not None and end.outgoing is not None:
            end.outgoing.occupy_sender(process.host.paid_ps)

    def _release(self) -> None:
        end, self._end = self._end, None
        assert end is not None
        for process in (end.process, HERE.process):
            if process is not None:
                process.sockets.pop(self._fd, None)
        close(end)

    @simulated
    def getsockopt(self, end: Endpoint, level: int, option: int, buflen: int = 0) -> Any:
        if level == socket.SOL_SOCKET:
            if option == socket.SO_ERROR:
                arrive()
                number, end.error = end.error, 0
                return number
            if option == socket.SO_ACCEPTCONN:
                return int(end.pending is not None)
        with self._like(end) as real:
            return real.getsockopt(level, option, *([buflen] if buflen else []))

    @simulated
    def setsockopt(self, end: Endpoint, level: int, option: int, *value: Any) -> None:
        with self._like(end) as real:
            # The operating system knows which options there are.
            real.setsockopt(level, option, *value)
        end.options[level, option] = value[0]

    def _like(self, end: Endpoint) -> Any:
        """Return a real socket with the same options."""
        real = RealSocket(end.family, end.kind, end.proto)
        for (level, option), value in end.options.items():
            real.setsockopt(level, option, value)
        return real

    def getsockname(self) -> Any:
        return super().getsockname() if self._end is None else self._end.name

    @simulated
    def getpeername(self, end: Endpoint) -> Any:
        if end.peer_name is None or end.is_connecting:
            raise refusal(errno.ENOTCONN)
        return end.peer_name

    def _wait(self, end: Endpoint, event: int, what: str, flags: int = 0) -> None:
        """Block until the socket is ready for something, as its timeout says."""
        self._hold(end)
        timeout = 0.0 if flags & socket.MSG_DONTWAIT else self._timeout
        if not wait_until(
            lambda: end.ready() & event, end.sources(), timeout, f"{what} of {end.describe()}"
        ):
            raise refusal(errno.EAGAIN) if timeout == 0 else TimeoutError("timed out")


def close(end: Any) -> None:
    """Close a descriptor at the calling process's time, which may have ended."""
    if isinstance(end, Connection):
        end.close()
        return
    process: Process = HERE.process or end.process
    end.released(max(process.host.paid_ps, process.session.run.simulation.now_ps))


def close_all() -> None:
    """Close what the calling process has left open, as the operating system does at its end."""
    process = HERE.process
    if process is not None:
        for end in [process.sockets.pop(fd) for fd in list(process.sockets)]:
            # A pool's finalizer still tells its threads by a pipe; those given to it are closed.
            if not isinstance(end, Connection):
                close(end)
