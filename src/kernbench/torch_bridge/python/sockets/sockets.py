"""``socket.socket`` of simulated processes: loopback, Unix sockets and nodes, in simulated time.

A socket that reaches outside of the run becomes a real one then, and the report says so.
"""

from __future__ import annotations

import errno
import multiprocessing.connection
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.python.sockets.channels import arrive
from kernbench.torch_bridge.python.sockets.connecting import ConnectingSocket, file_key, loopback
from kernbench.torch_bridge.python.sockets.endpoints import FIRST_FD, Endpoint, refusal
from kernbench.torch_bridge.python.sockets.handles import (
    FLAGS_OF_KIND,
    KINDS,
    close,
    network,
    simulated,
)


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
