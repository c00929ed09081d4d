"""Ends of connections of simulated processes, and the names under which they are found."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from kernbench.hardware import ceil_ps
from kernbench.torch_bridge.processes.process import Process, current
from kernbench.torch_bridge.python.sockets.channels import Channel, Watchable, Wire, host_spec

RealSocket: Any = socket.socket
"""The class whose sockets are the operating system's."""
FIRST_FD = 1 << 20
"""Above what Linux permits by default, so that no file has the same number."""
_FIRST_PORT, _LAST_PORT = 32768, 60999
"""Ports that are assigned where a program asks for any: net.ipv4.ip_local_port_range."""
_TCP_BYTES = 4_194_304
"""Bytes of a TCP connection that may be unread: the largest of net.ipv4.tcp_wmem."""
_UNIX_BYTES = 212_992
"""The same of a Unix socket: net.core.wmem_default."""
_SEGMENT_BYTES = 65_536
"""What arrives at once: the MTU of the loopback device."""
_WILDCARDS = frozenset({"0.0.0.0", "::"})
_V6_ONLY = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def refusal(number: int) -> OSError:
    """Return an error of the operating system, as Python raises it."""
    return OSError(number, os.strerror(number))


class Endpoint(Watchable):
    """A socket as the kernel has it; several descriptors may refer to it."""

    def __init__(self, network: SocketNetwork, family: int, kind: int, proto: int) -> None:
        super().__init__()
        self.network = network
        self.process = current()
        self.family = family
        self.kind = kind
        self.proto = proto
        self.options: dict[tuple[int, int], Any] = {}
        self.num_handles = 0
        self.name: Any = ("0.0.0.0", 0) if family == socket.AF_INET else ("::", 0, 0, 0)
        if family == socket.AF_UNIX:
            self.name = ""
        self.key: Any = None
        """Under what it is found: its port, or the file of a Unix socket."""
        self.peer_name: Any = None
        self.peer: Endpoint | None = None
        self.pending: deque[Endpoint] | None = None
        """Connections to accept, of one that listens."""
        self.incoming: Channel | None = None
        self.outgoing: Channel | None = None
        self.is_connecting = False
        self.error = 0
        """The pending error of a connection, by its number."""
        self.reads, self.writes = True, True
        """Whether each direction has not been shut down."""
        self.owner: Any = None
        """The socket of ZeroMQ whose address it is."""
        self.real_fd: int | None = None
        """The real socket in its place, once it reaches outside of the run."""

    @property
    def is_stream(self) -> bool:
        return self.kind == socket.SOCK_STREAM

    def describe(self) -> str:
        """Return what errors call it."""
        kind = "Unix socket" if self.family == socket.AF_UNIX else "socket"
        if self.peer is not None and not self.name and not self.peer.name:
            return "a socket of socketpair()"
        own, other = shown(self.name), shown(self.peer_name)
        if self.pending is not None:
            return f"a {kind} that listens at {own}"
        return f"a {kind} at {own}" + (f" connected to {other}" if self.peer_name else "")

    def sources(self) -> Iterator[Watchable]:
        """Yield what changes when the socket may be ready."""
        yield self
        if self.incoming is not None:
            yield self.incoming
        if self.outgoing is not None:
            yield self.outgoing

    def ready(self) -> int:
        """Return what it is ready for, as ``poll`` says it."""
        if self.pending is not None:
            return select.POLLIN if self.pending else 0
        if not self.is_stream:
            can_read = self.incoming is not None and self.incoming.items
            return select.POLLOUT | (select.POLLIN if can_read else 0)
        if self.is_connecting:
            return 0
        if self.error:
            return select.POLLIN | select.POLLOUT | select.POLLERR | select.POLLHUP
        if self.incoming is None or self.outgoing is None:
            return select.POLLOUT | select.POLLHUP
        is_ended = self.incoming.is_ended or not self.reads
        pollin = select.POLLIN if self.incoming.items or is_ended else 0
        if self.outgoing.space > 0 or not self.writes:
            pollin |= select.POLLOUT
        return pollin | (select.POLLHUP if is_ended and not self.writes else 0)

    def join(self, other: Endpoint) -> None:
        """Make this and another stream the two ends of a connection."""
        wire = self.network.wire(self, other)
        simulation = self.network.simulation
        for a, b in ((self, other), (other, self)):
            a.peer = b
            a.outgoing = b.incoming = Channel(simulation, wire, a.capacity)

    @property
    def capacity(self) -> int:
        asked = self.options.get((socket.SOL_SOCKET, socket.SO_SNDBUF))
        default = _UNIX_BYTES if self.family == socket.AF_UNIX else _TCP_BYTES
        # Linux doubles what is asked for.
        return default if asked is None else max(2 * asked, 4608)

    def put(self, data: memoryview, now_ps: int) -> int:
        """Send bytes as far as there is space, and return how many."""
        assert self.outgoing is not None
        size = int(min(len(data), self.outgoing.space))
        for start in range(0, size, _SEGMENT_BYTES):
            part = bytes(data[start : min(start + _SEGMENT_BYTES, size)])
            self.outgoing.send(part, len(part), len(part), now_ps)
        self.outgoing.occupy_sender(now_ps)
        if not self.outgoing.has_reader and self.peer is not None:
            self.peer.reset(now_ps + self.network.wire(self, self.peer).latency_ps)
        return size

    def get(self, size: int, peeks: bool = False) -> bytes:
        """Take at most so many bytes of those that have arrived."""
        assert self.incoming is not None
        items, parts, left = self.incoming.items, [], size
        while items and left:
            part = items[0]
            parts.append(part[:left])
            left -= len(parts[-1])
            if peeks:
                break
            if len(part) > len(parts[-1]):
                items[0] = part[len(parts[-1]) :]
            else:
                items.popleft()
        if not peeks:
            self.incoming.take(size - left)
        return b"".join(parts)

    def reset(self, now_ps: int) -> None:
        """Tell the other end that what it sends is not read any more."""
        peer, back = self.peer, self.outgoing
        assert peer is not None
        assert back is not None

        def arrived() -> None:
            if not peer.error:
                peer.error = errno.EPIPE if back.is_ended else errno.ECONNRESET
                peer.writes = False
            peer.changed()

        at_ps = now_ps + self.network.wire(self, peer).latency_ps
        self.network.simulation.call_at(at_ps, arrived)

    def shut(self, reads: bool, writes: bool, now_ps: int) -> None:
        """Shut down directions."""
        if reads and self.reads:
            self.reads = False
        if writes and self.writes and self.outgoing is not None:
            self.writes = False
            self.outgoing.end(now_ps)
        self.changed()

    def released(self, now_ps: int) -> None:
        """Close it with the last descriptor of it."""
        self.num_handles -= 1
        if self.num_handles:
            return
        self.network.forget(self)
        for endpoint in self.pending or ():
            endpoint.num_handles = 1
            endpoint.reset(now_ps)
            endpoint.released(now_ps)
        self.pending = None if self.pending is None else deque()
        incoming = self.incoming
        if self.is_stream and incoming is not None:
            incoming.has_reader = False
            if incoming.unread and not self.error:
                self.writes = False
                self.reset(now_ps)
            self.shut(True, True, now_ps)
            if self.family == socket.AF_UNIX and self.peer is not None:
                self.peer.writes = False
            incoming.changed()
        self.changed()


def shown(name: Any) -> str:
    """Return an address as errors show it."""
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in str(name[0]) else f"{name[0]}:{name[1]}"
    return os.fsdecode(name) or "no name" if isinstance(name, (str, bytes)) else "no name"


class SocketNetwork:
    """All sockets of a run: who listens where, on which node, and what was reached outside."""

    def __init__(self, session: Any, address_of: Callable[[int], str]) -> None:
        machine = session.run.machine
        self.simulation = session.run.simulation
        self.num_nodes: int = machine.num_hosts
        self._scale_out = machine.spec.links and machine.spec.links.scale_out
        self._address_of = address_of
        self._bound: dict[Any, list[Endpoint]] = {}
        """Sockets by node, kind and port, or by the file of a Unix socket."""
        self._ports = count(_FIRST_PORT)
        self._fds = count(FIRST_FD)
        self.waiting: list[Any] = []
        """Addresses to which ZeroMQ's sockets connect once somebody is bound to them."""
        self.no_wire = Wire()
        """Between threads of one process."""
        self.outside: dict[str, None] = session.reached
        self._keeper = session.run.keeper

    def new_fd(self, is_of_pipe: bool = False) -> int:
        """Return the number of a new descriptor."""
        if self._keeper is not None and not is_of_pipe:
            self._keeper.refused["it uses sockets"] = None
        return next(self._fds)

    def wire(self, one: Endpoint, other: Endpoint) -> Wire:
        """Return how long what two sockets send each other takes."""
        is_unix = one.family == socket.AF_UNIX
        return self.wire_of(one.process, other.process, is_unix)

    def wire_of(self, one: Process, other: Process, is_unix: bool, extra_us: Any = 0) -> Wire:
        """Return the same for two processes."""
        spec = host_spec(one)
        latency_us = (spec.unix_socket_us if is_unix else spec.tcp_us) + extra_us
        between_ps = 0
        if one.node != other.node and self._scale_out:
            between_ps = ceil_ps(self._scale_out.latency_ns * 1000)
        return Wire(latency_us, spec, between_ps)

    def node_of(self, host: str, process: Process) -> int | None:
        """Return the node that an address means to a process; None: it is outside of the run."""
        if self.num_nodes > 1:
            for node in range(self.num_nodes):
                if host == self._address_of(node):
                    return node
        return process.node if _is_own(host) else None

    def own_address(self, process: Process) -> str | None:
        """Return the address of a process's node, where nodes have addresses."""
        return self._address_of(process.node) if self.num_nodes > 1 else None

    def bind_port(self, end: Endpoint, host: str, port: int) -> int:
        """Give a socket a port, any if it is 0, and return it."""
        if not port:
            port = next(
                any_port for any_port in self._any_ports() if not self._users(end, host, any_port)
            )
        elif self._users(end, host, port):
            raise refusal(errno.EADDRINUSE)
        self.bind_key(end, (end.process.node, end.kind, port))
        return port

    def _any_ports(self) -> Iterator[int]:
        while True:
            yield _FIRST_PORT + (next(self._ports) - _FIRST_PORT) % (_LAST_PORT - _FIRST_PORT + 1)

    def _users(self, end: Endpoint, host: str, port: int) -> list[Endpoint]:
        """Return the sockets because of which a socket cannot have a port."""
        return [
            endpoint
            for endpoint in self._bound.get((end.process.node, end.kind, port), ())
            if _overlap(end, host, endpoint, endpoint.name[0])
            and not _both(end, endpoint, socket.SO_REUSEPORT)
            and not (_both(end, endpoint, socket.SO_REUSEADDR) and endpoint.pending is None)
        ]

    def bind_key(self, end: Endpoint, key: Any) -> None:
        """Let a socket be found under a key."""
        end.key = key
        self._bound.setdefault(key, []).append(end)

    def forget(self, end: Endpoint) -> None:
        """Let a socket not be found any more."""
        users = self._bound.get(end.key, [])
        if end in users:
            users.remove(end)
            if not users:
                del self._bound[end.key]

    def users_of(self, key: Any) -> list[Endpoint]:
        """Return the sockets under a key."""
        return self._bound.get(key, [])

    def listener(self, end: Endpoint, node: int, host: str, port: int) -> Endpoint | None:
        """Return the socket that has an address for what another sends there."""
        for endpoint in self._bound.get((node, end.kind, port), ()):
            if (endpoint.pending is not None or not endpoint.is_stream) and _overlap(
                end, host, endpoint, endpoint.name[0]
            ):
                return endpoint
        return None


def _overlap(one: Endpoint, host: str, other: Endpoint, other_host: str) -> bool:
    if one.family != other.family and not (_is_dual(one, host) or _is_dual(other, other_host)):
        return False
    return host == other_host or host in _WILDCARDS or other_host in _WILDCARDS


def _is_dual(end: Endpoint, host: str) -> bool:
    return end.family == socket.AF_INET6 and host == "::" and not end.options.get(_V6_ONLY)


def _both(one: Endpoint, other: Endpoint, option: int) -> bool:
    return all(endpoint.options.get((socket.SOL_SOCKET, option)) for endpoint in (one, other))


def _is_own(host: str) -> bool:
    """Return whether an address is one of this computer's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), RealSocket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return True
    return False
