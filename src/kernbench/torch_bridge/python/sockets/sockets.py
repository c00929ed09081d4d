"""``socket.socket`` of simulated processes: loopback, Unix sockets and nodes, in simulated time.

A socket that reaches outside of the run becomes a real one then, and the report says so.
"""

from __future__ import annotations

import errno
import multiprocessing.connection
import os
import select
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.process import HERE, Process, current
from kernbench.torch_bridge.python.sockets.channels import Channel, arrive, wait_until
from kernbench.torch_bridge.python.sockets.endpoints import (
    Endpoint,
    RealSocket,
    SocketNetwork,
    refusal,
    shown,
)

_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
_FLAGS_OF_KIND = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_MOST_PORT = 65535


def network() -> SocketNetwork | None:
    """Return the run's sockets; None where the caller is outside of the simulation."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        return None
    found: SocketNetwork = process.session.network
    return found


class SimulatedSocket(socket.socket):
    """``socket.socket``: simulated in a simulated process, real outside of one."""

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
        plain = kind & ~_FLAGS_OF_KIND
        if end is None:
            if family not in _FAMILIES or plain not in _KINDS:
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

    def settimeout(self, value: float | None) -> None:
        if self._end is None:
            super().settimeout(value)
            return
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

    def set_inheritable(self, inheritable: bool) -> None:
        if self._end is None:
            super().set_inheritable(inheritable)

    def __del__(self) -> None:
        if self._end is not None and not self._closed:
            self._release()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.dup()

    def dup(self) -> Self:
        if self._end is None:
            return super().dup()
        made = type(self).__new__(type(self))
        made._io_refs, made._closed = 0, False
        made._end, made._fd, made._timeout = self._end, self._end.network.new_fd(), self._timeout
        self._end.num_handles += 1
        return made

    def detach(self) -> int:
        if self._end is None:
            return super().detach()
        self._closed, self._end = True, None
        fd, self._fd = self._fd, -1
        return fd

    def _real_close(self) -> None:
        if self._end is None:
            super()._real_close()  # type: ignore[misc]
            return
        end, process = self._end, HERE.process
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

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> Any:
        end = self._end
        if end is None:
            return super().getsockopt(level, option, *([buflen] if buflen else []))
        if level == socket.SOL_SOCKET:
            if option == socket.SO_ERROR:
                arrive()
                found, end.error = end.error, 0
                return found
            if option == socket.SO_ACCEPTCONN:
                return int(end.pending is not None)
        with self._like(end) as real:
            return real.getsockopt(level, option, *([buflen] if buflen else []))

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        end = self._end
        if end is None:
            super().setsockopt(level, option, *value)
            return
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

    def getpeername(self) -> Any:
        if self._end is None:
            return super().getpeername()
        if self._end.peer_name is None or self._end.is_connecting:
            raise refusal(errno.ENOTCONN)
        return self._end.peer_name

    # Names.

    def bind(self, address: Any) -> None:
        end = self._end
        if end is None:
            super().bind(address)
            return
        arrive()
        if end.key is not None:
            raise refusal(errno.EINVAL)
        if end.family == socket.AF_UNIX:
            with self._like(end) as real:
                # The file is real, and so are errors of its path.
                real.bind(address)
                end.name = real.getsockname()
            end.network.bind_key(end, file_key(end, end.name))
            return
        host, port, *rest = self._resolved(end, address)
        if end.network.node_of(host, end.process) != end.process.node:
            raise refusal(errno.EADDRNOTAVAIL)
        self._bind(end, host, port, rest)

    def _bind(self, end: Endpoint, host: str, port: int, rest: Iterable[int] = ()) -> None:
        port = end.network.bind_port(end, host, port)
        flow = (*rest, 0, 0)[:2] if end.family == socket.AF_INET6 else ()
        end.name = (host, port, *flow)
        if not end.is_stream:
            self._receive(end)

    def _receive(self, end: Endpoint) -> None:
        if end.incoming is None:
            wire = end.network.wire(end, end)
            end.incoming = Channel(end.network.simulation, wire, end.capacity)

    def _resolved(self, end: Endpoint, address: Any) -> tuple[Any, ...]:
        """Return an address with numbers; what is none raises Python's own errors."""
        if isinstance(address, tuple) and len(address) >= 2 and isinstance(address[1], int):
            host, port, *rest = address
            if isinstance(host, str):
                if not 0 <= port <= _MOST_PORT:
                    raise OverflowError("port must be 0-65535.")
                if not host:
                    host = "0.0.0.0" if end.family == socket.AF_INET else "::"
                elif host == "<broadcast>":
                    host = "255.255.255.255"
                found = socket.getaddrinfo(host, port, end.family, end.kind)
                return (found[0][4][0], port, *rest)
        with self._like(end) as real:
            real.connect_ex(address)
        raise TypeError(f"{type(self).__name__}: address must be a (host, port) tuple")

    def listen(self, backlog: int = 128) -> None:
        end = self._end
        if end is None:
            super().listen(backlog)
            return
        arrive()
        if not end.is_stream:
            raise refusal(errno.EOPNOTSUPP)
        if end.key is None:
            if end.family == socket.AF_UNIX:
                raise refusal(errno.EINVAL)
            self._bind(end, end.name[0], 0)
        if end.pending is None:
            end.pending = deque()

    # Connections.

    def _accept(self) -> tuple[int, Any]:
        end = self._end
        if end is None:
            found: tuple[int, Any] = super()._accept()  # type: ignore[misc]
            return found
        if end.pending is None:
            raise refusal(errno.EINVAL)
        self._wait(end, select.POLLIN, "accept")
        made = end.pending.popleft()
        made.process = current()
        fd = end.network.new_fd()
        made.num_handles += 1
        current().sockets[fd] = made
        return fd, made.peer_name

    def connect(self, address: Any) -> None:
        if self._end is None:
            super().connect(address)
        elif error := self._connect(self._end, address):
            raise refusal(error)

    def connect_ex(self, address: Any) -> int:
        if self._end is None:
            return int(super().connect_ex(address))
        try:
            return self._connect(self._end, address)
        except TimeoutError:
            return errno.EAGAIN

    def _connect(self, end: Endpoint, address: Any) -> int:
        now_ps = arrive()
        if end.is_connecting:
            return errno.EALREADY
        if end.is_stream and end.peer is not None:
            return errno.EISCONN
        if end.pending is not None:
            return errno.EINVAL
        if end.family == socket.AF_UNIX:
            return self._connect_file(end, address, now_ps)
        host, port, *rest = self._resolved(end, address)
        node = end.network.node_of(host, end.process)
        if not end.is_stream:
            return self._connect_datagrams(end, node, host, port)
        if node is None:
            return self._leave(end, (host, port, *rest))
        found = end.network.listener(end, node, host, port)
        if found is None and node == end.process.node and not self._reach(end, (host, port, *rest)):
            return 0
        if end.key is None:
            self._bind(end, end.network.own_address(end.process) or _loopback(host), 0)
        end.peer_name = (host, port, *((0, 0) if end.family == socket.AF_INET6 else ()))
        return self._shake_hands(end, found, now_ps)

    def _shake_hands(self, end: Endpoint, found: Endpoint | None, now_ps: int) -> int:
        """Connect after a message to the other side, and its answer."""
        simulation = end.network.simulation
        wire = end.network.wire(end, end if found is None else found)
        end.is_connecting = True
        made: list[Endpoint] = []

        def comes() -> None:
            if found is not None and found.pending is not None:
                made.append(_accepted(found, end))
            # Otherwise its answer is that nobody listens.
            simulation.call_at(simulation.now_ps + wire.latency_ps, answered)

        def answered() -> None:
            end.is_connecting = False
            end.error = 0 if made else errno.ECONNREFUSED
            end.changed()

        simulation.call_at(now_ps + wire.latency_ps, comes)
        if self._timeout == 0:
            return errno.EINPROGRESS
        whom = end.describe()
        if not wait_until(
            lambda: not end.is_connecting, [end], self._timeout, f"connect of {whom}"
        ):
            raise TimeoutError("timed out")
        error, end.error = end.error, 0
        return error

    def _connect_file(self, end: Endpoint, address: Any, now_ps: int) -> int:
        users = end.network.users_of(file_key(end, address))
        found = next((each for each in users if each.pending is not None), None)
        if not end.is_stream and users:
            end.peer, end.peer_name = users[0], users[0].name
            return 0
        if found is None:
            return self._reach(end, address)
        end.peer_name = found.name
        latency_ps = end.network.wire(end, found).latency_ps
        _accepted(found, end, now_ps + latency_ps)
        return 0

    def _connect_datagrams(self, end: Endpoint, node: int | None, host: str, port: int) -> int:
        own = end.network.own_address(end.process)
        if node is None and own is None:
            return self._leave(end, (host, port))
        if end.key is None:
            self._bind(end, own or _loopback(host), 0)
        end.peer_name = (host, port)
        return 0

    def _reach(self, end: Endpoint, address: Any) -> int:
        """Connect to a server of this computer that is no part of the run, if there is one."""
        real = self._like(end)
        error = int(real.connect_ex(address))
        if error:
            real.close()
        else:
            self._become(end, real, address)
        return error

    def _leave(self, end: Endpoint, address: Any) -> int:
        """Become a real socket, and connect it."""
        self._become(end, self._like(end), address)
        return int(super().connect_ex(address))

    def _become(self, end: Endpoint, real: Any, address: Any) -> None:
        """Become a real socket, which an address outside of the run is reached by."""
        timeout = self._timeout
        end.network.forget(end)
        end.network.outside[shown(address)] = None
        end.real_fd = real.fileno()
        self._end = None
        super().__init__(end.family, end.kind, end.proto, real.detach())
        super().settimeout(timeout)

    def shutdown(self, how: int) -> None:
        end = self._end
        if end is None:
            super().shutdown(how)
            return
        now_ps = arrive()
        if how not in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            raise refusal(errno.EINVAL)
        if end.is_stream and end.peer is None and end.pending is None:
            raise refusal(errno.ENOTCONN)
        end.shut(how != socket.SHUT_WR, how != socket.SHUT_RD, now_ps)
        if end.outgoing is not None:
            end.outgoing.occupy_sender(now_ps)

    # Data.

    def _wait(self, end: Endpoint, event: int, what: str, flags: int = 0) -> None:
        """Block until the socket is ready for something, as its timeout says."""
        self._hold(end)
        timeout = 0.0 if flags & socket.MSG_DONTWAIT else self._timeout
        if not wait_until(
            lambda: end.ready() & event, end.sources(), timeout, f"{what} of {end.describe()}"
        ):
            raise refusal(errno.EAGAIN) if timeout == 0 else TimeoutError("timed out")

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        if self._end is None:
            return super().recv(bufsize, flags)
        return self._received(bufsize, flags)[0]

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, Any]:
        if self._end is None:
            return super().recvfrom(bufsize, flags)
        return self._received(bufsize, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        if self._end is None:
            return super().recv_into(buffer, nbytes, flags)
        return self.recvfrom_into(buffer, nbytes, flags)[0]

    def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        if self._end is None:
            return super().recvfrom_into(buffer, nbytes, flags)
        view = memoryview(buffer).cast("B")
        data, sender = self._received(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data), sender

    def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> Any:
        if self._end is None:
            return super().recvmsg(bufsize, ancbufsize, flags)
        data, sender = self._received(bufsize, flags)
        return data, [], 0, sender

    def _received(self, size: int, flags: int) -> tuple[bytes, Any]:
        end = self._end
        assert end is not None
        if size < 0:
            raise ValueError("negative buffersize in recv")
        if not end.is_stream:
            self._receive(end)
            self._wait(end, select.POLLIN, "recv", flags)
            assert end.incoming is not None
            data, sender = end.incoming.items.popleft()
            end.incoming.take(len(data))
            return data[:size], sender
        if end.incoming is None and not end.is_connecting:
            raise refusal(end.error or errno.ENOTCONN)
        parts: list[bytes] = []
        while True:
            self._wait(end, select.POLLIN, "recv", flags)
            assert end.incoming is not None
            if end.incoming.items:
                parts.append(end.get(size - len(b"".join(parts)), bool(flags & socket.MSG_PEEK)))
                if flags & socket.MSG_WAITALL and sum(map(len, parts)) < size:
                    continue
            elif end.error and not end.incoming.is_ended:
                error, end.error = end.error, 0
                end.incoming.is_ended = True
                raise refusal(error)
            return b"".join(parts), None

    def send(self, data: Any, flags: int = 0) -> int:
        end = self._end
        if end is None:
            return super().send(data, flags)
        view = memoryview(data).cast("B")
        if not end.is_stream:
            if end.peer_name is None:
                raise refusal(errno.EDESTADDRREQ)
            return self._put_datagram(end, view, end.peer_name)
        self._check_writes(end)
        self._wait(end, select.POLLOUT, "send", flags)
        self._check_writes(end)
        return end.put(view, arrive())

    def _check_writes(self, end: Endpoint) -> None:
        if end.is_connecting:
            return
        if end.error:
            error, end.error = end.error, 0
            raise refusal(error)
        if end.outgoing is None or not end.writes:
            is_unconnected = end.family == socket.AF_UNIX and end.outgoing is None
            raise refusal(errno.ENOTCONN if is_unconnected else errno.EPIPE)

    def sendall(self, data: Any, flags: int = 0) -> None:
        if self._end is None:
            super().sendall(data, flags)
            return
        view = memoryview(data).cast("B")
        while True:
            view = view[self.send(view, flags) :]
            if not view:
                return

    def sendmsg(self, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        if self._end is None:
            return super().sendmsg(buffers, ancdata, flags, address)
        if list(ancdata):
            raise UnsupportedTorchError(
                "sendmsg with ancillary data by a simulated socket: processes of a run cannot send "
                "each other files; send the path, or start the process with the socket"
            )
        data = b"".join(buffers)
        return self.send(data, flags) if address is None else self.sendto(data, flags, address)

    def sendto(self, data: Any, *rest: Any) -> int:
        end = self._end
        if end is None:
            return super().sendto(data, *rest)
        if end.is_stream:
            return self.send(data, *rest[:-1])
        return self._put_datagram(end, memoryview(data).cast("B"), rest[-1])

    def _put_datagram(self, end: Endpoint, data: memoryview, address: Any) -> int:
        now_ps = arrive()
        if end.outgoing is not None:
            found = end.peer
        elif end.family == socket.AF_UNIX:
            found = next(iter(end.network.users_of(file_key(end, address))), None)
        else:
            host, port, *_ = self._resolved(end, address)
            node = end.network.node_of(host, end.process)
            if end.key is None:
                self._bind(end, end.network.own_address(end.process) or _loopback(host), 0)
            if node is None:
                error = self._leave(end, (host, port))
                if error:
                    raise refusal(error)
                return super().send(data)
            found = end.network.listener(end, node, host, port)
        if found is not None:
            self._receive(found)
            incoming = found.incoming
            assert incoming is not None
            # Like real ones, datagrams are lost where there is no space.
            if incoming.space >= len(data):
                incoming.send((bytes(data), end.name), len(data), len(data), now_ps)
                incoming.occupy_sender(now_ps)
        elif end.family == socket.AF_UNIX:
            raise refusal(errno.ECONNREFUSED)
        return len(data)

    def sendfile(self, file: Any, offset: int = 0, count: int | None = None) -> int:
        if self._end is None:
            return super().sendfile(file, offset, count)
        sent: int = self._sendfile_use_send(file, offset, count)  # type: ignore[attr-defined]
        return sent


def close(end: Any) -> None:
    """Close a descriptor of a socket at the calling process's time, which may have ended."""
    process: Process = HERE.process or end.process
    end.released(max(process.host.paid_ps, process.session.run.simulation.now_ps))


def close_all() -> None:
    """Close what the calling process has left open, as the operating system does at its end."""
    process = HERE.process
    if process is not None:
        for end in [process.sockets.pop(fd) for fd in list(process.sockets)]:
            close(end)


def _accepted(listener: Endpoint, client: Endpoint, at_ps: int | None = None) -> Endpoint:
    """Return the other end of a connection, which the listener can accept now or at a time."""
    made = Endpoint(listener.network, listener.family, listener.kind, listener.proto)
    made.process = listener.process
    made.name, made.peer_name = client.peer_name, client.name
    if listener.family == socket.AF_INET6 and client.family == socket.AF_INET:
        made.name, made.peer_name = (
            (f"::ffff:{host}", port, 0, 0) for host, port in (made.name, made.peer_name)
        )
    made.options = dict(listener.options)
    client.join(made)

    def comes() -> None:
        if listener.pending is None:
            made.num_handles = 1
            made.released(made.network.simulation.now_ps)
        else:
            listener.pending.append(made)
            listener.changed()

    if at_ps is None:
        comes()
    else:
        listener.network.simulation.call_at(at_ps, comes)
    return made


def _loopback(host: str) -> str:
    """Return the address from which a connection to one of this computer's comes."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def file_key(end: Endpoint, path: Any) -> Any:
    """Return under what a Unix socket is found: its file, or its abstract name."""
    name = os.fsencode(path)
    if not name or name[0] == 0:
        return (end.process.node, end.kind, name)
    with suppress(OSError):
        status = Path(os.fsdecode(name)).stat()
        if stat.S_ISSOCK(status.st_mode):
            return (end.process.node, end.kind, status.st_dev, status.st_ino)
    return None


def _pair(real: Callable[..., Any]) -> Callable[..., Any]:
    def socketpair(family: Any = None, type: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
        family = socket.AF_UNIX if family is None else family
        if network() is None or family != socket.AF_UNIX or type & ~_FLAGS_OF_KIND not in _KINDS:
            return real(family, type, proto)
        one, other = (SimulatedSocket(family, type, proto) for _ in range(2))
        ends = one._end, other._end
        assert ends[0] is not None
        assert ends[1] is not None
        ends[0].join(ends[1])
        ends[0].peer_name = ends[1].peer_name = ""
        return one, other

    return socketpair


def _by_descriptor(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function of ``os`` for descriptors, also for those of simulated sockets."""

    def call(fd: int, *args: Any) -> Any:
        if network() is None or fd not in current().sockets:
            return real(fd, *args)
        made = SimulatedSocket(fileno=fd)
        try:
            return getattr(made, name)(*args)
        finally:
            made.detach()

    return call


def install(patches: Patches) -> None:
    """Let sockets that simulated processes make be simulated."""
    connection: Any = multiprocessing.connection.Connection
    for method, real, name in (
        (connection._send, os.write, "send"),
        (connection._recv, os.read, "recv"),
        (connection._close, os.close, "close"),
    ):
        patches.set(method, "__defaults__", (_by_descriptor(real, name),))
    patches.set(socket, "socket", SimulatedSocket)
    patches.set(socket, "SocketType", SimulatedSocket)
    patches.set(socket, "socketpair", _pair(socket.socketpair))
