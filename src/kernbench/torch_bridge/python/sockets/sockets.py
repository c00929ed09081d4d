"""``socket.socket`` of simulated processes: loopback, Unix sockets and nodes, in simulated time.

They get names, and reach each other or an address outside of the run: a socket becomes a real one
then, and the report says so.
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
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.python.sockets.channels import Channel, arrive, wait_until
from kernbench.torch_bridge.python.sockets.endpoints import FIRST_FD, Endpoint, refusal, shown
from kernbench.torch_bridge.python.sockets.handles import (
    FLAGS_OF_KIND,
    KINDS,
    SocketHandle,
    close,
    network,
    simulated,
)

_MOST_PORT = 65535


class ConnectingSocket(SocketHandle):
    """A socket that has a name, listens, accepts and connects."""

    # Names.

    @simulated
    def bind(self, end: Endpoint, address: Any) -> None:
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
            end.incoming = Channel(end.network.simulation, end.network.wire(end, end), end.capacity)

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
                result = socket.getaddrinfo(host, port, end.family, end.kind)
                return (result[0][4][0], port, *rest)
        with self._like(end) as real:
            real.connect_ex(address)
        raise TypeError(f"{type(self).__name__}: address must be a (host, port) tuple")

    @simulated
    def listen(self, end: Endpoint, backlog: int = 128) -> None:
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

    @simulated
    def _accept(self, end: Endpoint) -> tuple[int, Any]:
        if end.pending is None:
            raise refusal(errno.EINVAL)
        self._wait(end, select.POLLIN, "accept")
        pending = end.pending.popleft()
        pending.process = current()
        fd = end.network.new_fd()
        pending.num_handles += 1
        current().sockets[fd] = pending
        return fd, pending.peer_name

    @simulated
    def connect(self, end: Endpoint, address: Any) -> None:
        if error := self._connect(end, address):
            raise refusal(error)

    @simulated
    def connect_ex(self, end: Endpoint, address: Any) -> int:
        try:
            return self._connect(end, address)
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
        connect = end.network.listener(end, node, host, port)
        if (
            connect is None
            and node == end.process.node
            and not self._reach(end, (host, port, *rest))
        ):
            return 0
        if end.key is None:
            self._bind(end, end.network.own_address(end.process) or loopback(host), 0)
        end.peer_name = (host, port, *((0, 0) if end.family == socket.AF_INET6 else ()))
        return self._shake_hands(end, connect, now_ps)

    def _shake_hands(self, end: Endpoint, endpoint: Endpoint | None, now_ps: int) -> int:
        """Connect after a message to the other side, and its answer."""
        simulation = end.network.simulation
        wire = end.network.wire(end, end if endpoint is None else endpoint)
        end.is_connecting = True
        endpoints: list[Endpoint] = []

        def comes() -> None:
            if endpoint is not None and endpoint.pending is not None:
                endpoints.append(_accepted(endpoint, end))
            # Otherwise its answer is that nobody listens.
            simulation.call_at(simulation.now_ps + wire.latency_ps, answered)

        def answered() -> None:
            end.is_connecting = False
            end.error = 0 if endpoints else errno.ECONNREFUSED
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
        endpoint = next((user for user in users if user.pending is not None), None)
        if not end.is_stream and users:
            end.peer, end.peer_name = users[0], users[0].name
            return 0
        if endpoint is None:
            return self._reach(end, address)
        end.peer_name = endpoint.name
        latency_ps = end.network.wire(end, endpoint).latency_ps
        _accepted(endpoint, end, now_ps + latency_ps)
        return 0

    def _connect_datagrams(self, end: Endpoint, node: int | None, host: str, port: int) -> int:
        own = end.network.own_address(end.process)
        if node is None and own is None:
            return self._leave(end, (host, port))
        if end.key is None:
            self._bind(end, own or loopback(host), 0)
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
        socket.socket.__init__(self, end.family, end.kind, end.proto, real.detach())
        super().settimeout(timeout)

    @simulated
    def shutdown(self, end: Endpoint, how: int) -> None:
        now_ps = arrive()
        if how not in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            raise refusal(errno.EINVAL)
        if end.is_stream and end.peer is None and end.pending is None:
            raise refusal(errno.ENOTCONN)
        end.shut(how != socket.SHUT_WR, how != socket.SHUT_RD, now_ps)
        if end.outgoing is not None:
            end.outgoing.occupy_sender(now_ps)


def _accepted(listener: Endpoint, client: Endpoint, at_ps: int | None = None) -> Endpoint:
    """Return the other end of a connection, which the listener can accept now or at a time."""
    endpoint = Endpoint(listener.network, listener.family, listener.kind, listener.proto)
    endpoint.process = listener.process
    endpoint.name, endpoint.peer_name = client.peer_name, client.name
    if listener.family == socket.AF_INET6 and client.family == socket.AF_INET:
        endpoint.name, endpoint.peer_name = (
            (f"::ffff:{host}", port, 0, 0) for host, port in (endpoint.name, endpoint.peer_name)
        )
    endpoint.options = dict(listener.options)
    client.join(endpoint)

    def comes() -> None:
        if listener.pending is None:
            endpoint.num_handles = 1
            endpoint.released(endpoint.network.simulation.now_ps)
        else:
            listener.pending.append(endpoint)
            listener.changed()

    if at_ps is None:
        comes()
    else:
        listener.network.simulation.call_at(at_ps, comes)
    return endpoint


def loopback(host: str) -> str:
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


class SimulatedSocket(ConnectingSocket):
    """``socket.socket``: what it sends and receives."""

    @simulated
    def recv(self, end: Endpoint, bufsize: int, flags: int = 0) -> bytes:
        return self._received(end, bufsize, flags)[0]

    @simulated
    def recvfrom(self, end: Endpoint, bufsize: int, flags: int = 0) -> tuple[bytes, Any]:
        return self._received(end, bufsize, flags)

    @simulated
    def recv_into(self, end: Endpoint, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return self.recvfrom_into(buffer, nbytes, flags)[0]

    @simulated
    def recvfrom_into(
        self, end: Endpoint, buffer: Any, nbytes: int = 0, flags: int = 0
    ) -> tuple[int, Any]:
        view = memoryview(buffer).cast("B")
        data, sender = self._received(end, nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data), sender

    @simulated
    def recvmsg(self, end: Endpoint, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> Any:
        data, sender = self._received(end, bufsize, flags)
        return data, [], 0, sender

    def _received(self, end: Endpoint, size: int, flags: int) -> tuple[bytes, Any]:
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

    @simulated
    def send(self, end: Endpoint, data: Any, flags: int = 0) -> int:
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

    @simulated
    def sendall(self, end: Endpoint, data: Any, flags: int = 0) -> None:
        view = memoryview(data).cast("B")
        while True:
            view = view[self.send(view, flags) :]
            if not view:
                return

    @simulated
    def sendmsg(
        self,
        end: Endpoint,
        buffers: Any,
        ancdata: Any = (),
        flags: int = 0,
        address: Any = None,
    ) -> int:
        if list(ancdata):
            raise UnsupportedTorchError(
                "sendmsg with ancillary data by a simulated socket: processes of a run cannot send "
                "each other files; send the path, or start the process with the socket"
            )
        data = b"".join(buffers)
        sent: int = self.send(data, flags) if address is None else self.sendto(data, flags, address)
        return sent

    @simulated
    def sendto(self, end: Endpoint, data: Any, *rest: Any) -> int:
        if end.is_stream:
            return self.send(data, *rest[:-1])
        return self._put_datagram(end, memoryview(data).cast("B"), rest[-1])

    def _put_datagram(self, end: Endpoint, data: memoryview, address: Any) -> int:
        now_ps = arrive()
        if end.outgoing is not None:
            peer = end.peer
        elif end.family == socket.AF_UNIX:
            peer = next(iter(end.network.users_of(file_key(end, address))), None)
        else:
            host, port, *_ = self._resolved(end, address)
            node = end.network.node_of(host, end.process)
            if end.key is None:
                self._bind(end, end.network.own_address(end.process) or loopback(host), 0)
            if node is None:
                error = self._leave(end, (host, port))
                if error:
                    raise refusal(error)
                return super().send(data)
            peer = end.network.listener(end, node, host, port)
        if peer is not None:
            self._receive(peer)
            incoming = peer.incoming
            assert incoming is not None
            # Like real ones, datagrams are lost where there is no space.
            if incoming.space >= len(data):
                incoming.send((bytes(data), end.name), len(data), len(data), now_ps)
                incoming.occupy_sender(now_ps)
        elif end.family == socket.AF_UNIX:
            raise refusal(errno.ECONNREFUSED)
        return len(data)

    @simulated
    def sendfile(self, end: Endpoint, file: Any, offset: int = 0, count: int | None = None) -> int:
        sent: int = self._sendfile_use_send(file, offset, count)  # type: ignore[attr-defined]
        return sent


def _pair(real: Callable[..., Any]) -> Callable[..., Any]:
    def socketpair(family: Any = None, type: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
        family = socket.AF_UNIX if family is None else family
        if network() is None or family != socket.AF_UNIX or type & ~FLAGS_OF_KIND not in KINDS:
            return real(family, type, proto)
        one, other = (SimulatedSocket(family, type, proto) for _ in range(2))
        ends = one._end, other._end
        assert ends[0] is not None
        assert ends[1] is not None
        ends[0].join(ends[1])
        ends[0].peer_name = ends[1].peer_name = ""
        return one, other

    return socketpair


_METHODS = {"read": "recv", "write": "send", "close": "close"}
"""Functions of ``os`` for descriptors, with methods of sockets that do the same."""


def _by_descriptor(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function of ``os`` for descriptors, also for simulated ones."""

    @unseen
    def call(fd: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(fd, int) or fd < FIRST_FD or network() is None:
            return real(fd, *args, **kwargs)
        process = current()
        end = process.sockets.get(fd)
        if isinstance(end, Endpoint) and name in _METHODS:
            simulated_socket = SimulatedSocket(fileno=fd)
            try:
                return getattr(simulated_socket, _METHODS[name])(*args)
            finally:
                simulated_socket.detach()
        if name == "close" and end is not None:
            close(end)
            return None
        if end is None:
            if name == "close" and process.parent_pid:
                # One of its parent's: a process has none but those that it was given.
                return None
            raise refusal(errno.EBADF)
        raise UnsupportedTorchError(
            f"os.{name}({fd}) of {end.describe()}: a simulated process has no such file of the "
            "operating system; it can be waited for (select, poll, selectors, asyncio, zmq), and "
            "sends and receives by its own methods"
        )

    return call


def install(patches: Patches) -> None:
    """Let sockets that simulated processes make be simulated."""
    calls = {name: _by_descriptor(getattr(os, name), name) for name in _METHODS}
    others = ("dup", "dup2", "fstat", "isatty", "set_blocking", "readv", "writev", "sendfile")
    calls.update((name, _by_descriptor(getattr(os, name), name)) for name in others)
    patches.set_all(os, calls)
    connection: Any = multiprocessing.connection.Connection
    for method, name in (("_send", "write"), ("_recv", "read"), ("_close", "close")):
        patches.set(getattr(connection, method), "__defaults__", (calls[name],))
    patches.set(socket, "socket", SimulatedSocket)
    patches.set(socket, "SocketType", SimulatedSocket)
    patches.set(socket, "socketpair", _pair(socket.socketpair))
