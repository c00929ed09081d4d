"""How simulated sockets get their names and reach each other, or an address outside of the run."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.python.sockets.channels import Channel, arrive, wait_until
from kernbench.torch_bridge.python.sockets.endpoints import Endpoint, refusal, shown
from kernbench.torch_bridge.python.sockets.handles import SocketHandle, simulated

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
