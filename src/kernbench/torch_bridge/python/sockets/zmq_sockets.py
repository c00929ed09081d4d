"""ZeroMQ's sockets among processes of a run: patterns, queues and connections.

Source of what they do: the RFCs of ZeroMQ (28/REQREP, 29/PUBSUB, 30/PIPELINE, 31/EXPAIR) and the
pages of libzmq 4.3 on ``zmq_socket``, ``zmq_setsockopt`` and ``zmq_inproc``.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.python.sockets.channels import (
    Channel,
    Watchable,
    arrive,
    host_spec,
    wait_until,
)
from kernbench.torch_bridge.python.sockets.endpoints import Endpoint, SocketNetwork
from kernbench.torch_bridge.python.sockets.handles import network
from kernbench.torch_bridge.python.sockets.sockets import file_key
from kernbench.torch_bridge.python.sockets.zmq_addresses import connecting, listening
from kernbench.torch_bridge.python.sockets.zmq_options import (
    DEFAULTS,
    EFSM,
    ETERM,
    NAMES,
    NEVER_RECEIVES,
    NEVER_SENDS,
    NOBLOCK,
    PEERS,
    PUBLISHES,
    REP,
    REQ,
    ROUTER,
    SENDS_TO_ONE,
    SNDMORE,
    STREAM,
    SUBSCRIBES,
    XPUB,
    Option,
    ZmqFailureError,
)

Message = list[bytes]
_NO_LIMIT = float("inf")


class Pipe:
    """One socket's side of its connection with another."""

    def __init__(self, incoming: Channel, outgoing: Channel, address: str | None) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.address = address
        """Where it connected to; None on the side that was bound."""
        self.other: ZmqCore | None = None
        """The socket at the other end, once that is connected."""
        self.routing_id = b""
        self.topics: list[bytes] = []
        """What the other side subscribes to."""
        self.is_told = False


class Connector:
    """An address to which a socket connects, as soon as one is bound to it."""

    def __init__(self, core: ZmqCore, address: str, pipe: Pipe, end: Endpoint | None) -> None:
        self.core = core
        self.address = address
        self.pipe = pipe
        self.end = end


class ZmqCore(Watchable):
    """A socket of ZeroMQ; those of Python that shadow each other have one."""

    real_fd = None

    def __init__(self, context: ZmqContextCore, kind: int) -> None:
        super().__init__()
        sockets = network()
        if sockets is None:
            raise UnsupportedTorchError(
                "a socket of ZeroMQ outside of the simulated processes that import zmq"
            )
        if not 0 <= kind < STREAM:
            raise ZmqFailureError(errno.EINVAL)
        self.network: SocketNetwork = sockets
        self.process = current()
        self.context = context
        self.kind = kind
        self.options = dict(DEFAULTS)
        self.pipes: list[Pipe] = []
        """Connections in the order in which they send and receive next."""
        self.bound: dict[str, Endpoint | None] = {}
        self.connectors: list[Connector] = []
        self.last_endpoint = b""
        self.topics: list[bytes] = []
        """What it subscribes to, as often as it has asked."""
        self.is_signaled = False
        """Whether something has changed since it was last looked at, as its descriptor says."""
        self.is_closed = False
        self.parts: deque[bytes] = deque()
        """The rest of the message that is being received."""
        self._sending: Message = []
        self._queue: deque[Message] = deque()
        """What it has received from the other sides' sockets themselves: subscriptions."""
        self._talks_with: Pipe | None = None
        """Whom a request is under way with."""
        self._envelope: Message = []
        self._next_id = 0
        self.fd, self.level_fd = sockets.new_fd(), sockets.new_fd()
        self.process.sockets.update({self.fd: self, self.level_fd: _Level(self)})
        context.cores[self] = None

    # As a file, which is ready when something has changed.

    def ready(self) -> int:
        return select.POLLIN if self.is_signaled else 0

    def sources(self) -> Iterator[Watchable]:
        yield self

    def describe(self) -> str:
        """Return what errors call it."""
        where = [last_endpoint.decode() for last_endpoint in (self.last_endpoint,) if last_endpoint]
        return f"a ZeroMQ {NAMES[self.kind]} socket" + (f" of {where[0]}" if where else "")

    def wake(self) -> None:
        """See what has arrived."""
        self.is_signaled = True
        if self.kind in PUBLISHES:
            self._take_subscriptions()
        for pipe in list(self.pipes):
            if pipe.incoming.is_ended and not pipe.incoming.items:
                self._lose(pipe)
        self.changed()

    def released(self, now_ps: int) -> None:
        """Close it."""
        if self.is_closed:
            return
        self.is_closed = True
        for fd in (self.fd, self.level_fd):
            self.process.sockets.pop(fd, None)
        for address in list(self.bound):
            self.unbind(address)
        for connector in self.connectors:
            self._stop_waiting(connector)
        for pipe in self.pipes:
            pipe.outgoing.end(now_ps)
            pipe.incoming.has_reader = False
        self.context.cores.pop(self, None)
        self.context.changed()
        self.changed()

    # Connections.

    def bind(self, address: str) -> None:
        """Let others connect to an address."""
        arrive()
        scheme, _, rest = address.partition("://")
        if scheme == "inproc":
            if rest in self.context.names:
                raise ZmqFailureError(errno.EADDRINUSE)
            self.context.names[rest] = self
            self.bound[address] = None
        else:
            end = listening(self.network, self.process, scheme, rest)
            address = self._address_of(scheme, end)
            self.bound[address] = end
            end.owner = self
        self.last_endpoint = address.encode()
        for connector in list(self.network.waiting):
            connector.core.try_to(connector)

    def _address_of(self, scheme: str, end: Endpoint) -> str:
        if scheme == "ipc":
            return f"ipc://{os.fsdecode(end.name)}"
        host, port = end.name[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def unbind(self, address: str) -> None:
        if address not in self.bound:
            raise ZmqFailureError(errno.ENOENT)
        end = self.bound.pop(address)
        if end is None:
            self.context.names.pop(address.partition("://")[2], None)
        else:
            self.network.forget(end)
            end.pending = None
            if end.family == socket.AF_UNIX and end.name and end.name[0] not in "@\0":
                with suppress(OSError):
                    Path(end.name).unlink()

    def connect(self, address: str) -> None:
        """Connect to an address, at once or as soon as somebody is bound to it."""
        now_ps = arrive()
        scheme, _, rest = address.partition("://")
        end = None if scheme == "inproc" else connecting(self.network, self.process, scheme, rest)
        # What is sent before it is connected waits in the queue.
        pipe = Pipe(self._channel(None), self._channel(None), address)
        connector = Connector(self, address, pipe, end)
        self.connectors.append(connector)
        self.last_endpoint = address.encode()
        self.network.waiting.append(connector)
        if not self.options[Option.IMMEDIATE]:
            self.pipes.append(pipe)
        self.try_to(connector, now_ps)
        self.changed()

    def disconnect(self, address: str) -> None:
        result = next((item for item in self.connectors if item.address == address), None)
        if result is None:
            raise ZmqFailureError(errno.ENOENT)
        self.connectors.remove(result)
        self._stop_waiting(result)
        if result.pipe in self.pipes:
            self.pipes.remove(result.pipe)
        result.pipe.outgoing.end(arrive())

    def try_to(self, connector: Connector, now_ps: int | None = None) -> None:
        """Connect if somebody is bound to the address."""
        other = self._bound_to(connector)
        if other is None or other.kind not in PEERS[self.kind]:
            return
        self._stop_waiting(connector)
        pipe, simulation = connector.pipe, self.network.simulation
        wire = self._wire(other, connector)
        for channel, sender, reader in ((pipe.outgoing, self, other), (pipe.incoming, other, self)):
            channel.connect(wire)
            hwm = sender.options[Option.SNDHWM], reader.options[Option.RCVHWM]
            is_limited = not reader.options[Option.CONFLATE] and 0 not in hwm
            channel.capacity = sum(hwm) if is_limited else _NO_LIMIT
        pipe.other = other
        theirs = Pipe(pipe.outgoing, pipe.incoming, None)
        theirs.other = self
        pipe.incoming.watchers.append(self)
        pipe.outgoing.watchers.append(self)

        def comes() -> None:
            if other.is_closed:
                pipe.incoming.end(simulation.now_ps)
                return
            theirs.routing_id = self.options[Option.ROUTING_ID]
            theirs.incoming.watchers.append(other)
            theirs.outgoing.watchers.append(other)
            if other._admits(theirs):
                other.pipes.append(theirs)
                if other.kind in SUBSCRIBES:
                    other._tell_topics(theirs)
                other.wake()

        def answers() -> None:
            pipe.routing_id = other.options[Option.ROUTING_ID]
            if not self.is_closed and self._admits(pipe):
                if pipe not in self.pipes:
                    self.pipes.append(pipe)
                self.wake()

        start_ps = simulation.now_ps if now_ps is None else now_ps
        if wire.latency_ps:
            simulation.call_at(start_ps + wire.latency_ps, comes)
            simulation.call_at(start_ps + 2 * wire.latency_ps, answers)
        else:
            comes()
            answers()
        if self.kind in SUBSCRIBES:
            self._tell_topics(pipe)

    def _stop_waiting(self, connector: Connector) -> None:
        if connector in self.network.waiting:
            self.network.waiting.remove(connector)

    def _bound_to(self, connector: Connector) -> ZmqCore | None:
        end = connector.end
        if end is None:
            return self.context.names.get(connector.address.partition("://")[2])
        if end.family == socket.AF_UNIX:
            key = file_key(end, end.peer_name)
            user = next(iter(self.network.users_of(key)), None) if key else None
        else:
            node = self.network.node_of(end.peer_name[0], self.process)
            assert node is not None
            user = self.network.listener(end, node, *end.peer_name[:2])
        return None if user is None else user.owner

    def _channel(self, wire: Any) -> Channel:
        return Channel(self.network.simulation, wire, self.options[Option.SNDHWM] or _NO_LIMIT)

    def _wire(self, other: ZmqCore, connector: Connector) -> Any:
        end = connector.end
        if end is None:
            return self.network.no_wire
        is_unix = end.family == socket.AF_UNIX
        extra_us = host_spec(self.process).zmq_us
        return self.network.wire_of(self.process, other.process, is_unix, extra_us)

    def _admits(self, pipe: Pipe) -> bool:
        """Give a router's connection its name, and return whether it has one of its own."""
        if self.kind not in (ROUTER, REP):
            return True
        if not pipe.routing_id:
            self._next_id += 1
            pipe.routing_id = b"\0" + self._next_id.to_bytes(4, "big")
        before = next(
            (p for p in self.pipes if p is not pipe and p.routing_id == pipe.routing_id), None
        )
        if before is not None and self.options[Option.ROUTER_HANDOVER]:
            self.pipes.remove(before)
            before = None
        return before is None

    def _lose(self, pipe: Pipe) -> None:
        """Forget a connection whose other side has closed; connect anew where it was asked to."""
        self.pipes.remove(pipe)
        if self._talks_with is pipe and self.kind == REQ:
            self._talks_with = None
        connector = next((item for item in self.connectors if item.pipe is pipe), None)
        if connector is not None and not self.is_closed:
            connector.pipe = Pipe(self._channel(None), self._channel(None), pipe.address)
            self.network.waiting.append(connector)
            if not self.options[Option.IMMEDIATE]:
                self.pipes.append(connector.pipe)

    # Subscriptions.

    def subscribe(self, topic: bytes, is_new: bool) -> None:
        """Subscribe to a topic at all that publish, or no longer."""
        if is_new:
            self.topics.append(topic)
        elif topic in self.topics:
            self.topics.remove(topic)
        else:
            return
        now_ps = arrive()
        for pipe in self.pipes:
            if pipe.is_told:
                _tell(pipe, topic, is_new, now_ps)

    def _tell_topics(self, pipe: Pipe) -> None:
        pipe.is_told = True
        for topic in self.topics:
            _tell(pipe, topic, True, self.network.simulation.now_ps)

    def _take_subscriptions(self) -> None:
        for pipe in self.pipes:
            while pipe.incoming.items:
                message = pipe.incoming.items.popleft()
                pipe.incoming.unread -= 1
                what, topic = message[0][:1], message[0][1:]
                others = [topic for p in self.pipes for topic in p.topics]
                if what == b"\1":
                    pipe.topics.append(topic)
                    is_first = topic not in others or self.options[Option.XPUB_VERBOSE]
                elif what == b"\0" and topic in pipe.topics:
                    pipe.topics.remove(topic)
                    others.remove(topic)
                    is_first = topic not in others
                else:
                    is_first = what not in (b"\0", b"\1")
                if is_first and self.kind == XPUB:
                    self._queue.append(message)

    # Messages.

    def send(self, part: bytes, flags: int) -> None:
        """Send a part of a message; with the last one it is under way."""
        self._check(NEVER_SENDS)
        self.is_signaled = False
        if not self._sending:
            self._check_turn_to_send()
            self._wait(lambda: self.can_send(part), flags, Option.SNDTIMEO, "send")
        self._sending.append(part)
        if not flags & SNDMORE:
            message, self._sending = self._sending, []
            self._dispatch(message, arrive())

    def _check_turn_to_send(self) -> None:
        waits = self._talks_with is not None
        if self.kind == REP and not waits:
            raise ZmqFailureError(EFSM)
        if self.kind == REQ and waits and not self.options[Option.REQ_RELAXED]:
            raise ZmqFailureError(EFSM)

    def can_send(self, part: bytes | None = None) -> bool:
        """Return whether a message can be sent without waiting; ``part`` is its first."""
        if self.kind in SENDS_TO_ONE:
            if self.kind == REQ and self._talks_with is not None and part is None:
                return False
            return any(pipe.outgoing.space > 0 for pipe in self.pipes)
        if self.kind == REP:
            return self._talks_with is not None
        if self.kind in NEVER_SENDS:
            return False
        if self.kind == ROUTER and self.options[Option.ROUTER_MANDATORY] and part is not None:
            pipe = self._pipe_of(part)
            if pipe is None:
                raise ZmqFailureError(errno.EHOSTUNREACH)
            return pipe.outgoing.space > 0
        if self.kind in PUBLISHES and self.options[Option.XPUB_NODROP]:
            return all(pipe.outgoing.space > 0 for pipe in self.pipes)
        return True

    def _pipe_of(self, routing_id: bytes) -> Pipe | None:
        return next((pipe for pipe in self.pipes if pipe.routing_id == routing_id), None)

    def _dispatch(self, message: Message, now_ps: int) -> None:
        match self.kind:
            case 4:  # REP
                pipe, self._talks_with = self._talks_with, None
                self._put([pipe], [*self._envelope, *message], now_ps)
            case 6:  # ROUTER
                self._put([self._pipe_of(message[0])], message[1:], now_ps)
            case 1 | 9:  # PUB, XPUB
                whole = message[0]
                wanted = [p for p in self.pipes if any(map(whole.startswith, p.topics))]
                self._put(wanted, message, now_ps)
            case 10:  # XSUB
                what, topic = message[0][:1], message[0][1:]
                if what in (b"\0", b"\1"):
                    self.subscribe(topic, what == b"\1")
                else:
                    self._put(self.pipes, message, now_ps)
            case _:
                pipe = next(pipe for pipe in self.pipes if pipe.outgoing.space > 0)
                # The next message goes to the next one.
                self.pipes.remove(pipe)
                self.pipes.append(pipe)
                if self.kind == REQ:
                    self._talks_with, message = pipe, [b"", *message]
                self._put([pipe], message, now_ps)

    def _put(self, pipes: list[Any], message: Message, now_ps: int) -> None:
        for pipe in pipes:
            # Where there is no space, or nobody of that name, it is dropped.
            if pipe is not None and pipe in self.pipes and pipe.outgoing.space > 0:
                pipe.outgoing.send(message, sum(map(len, message)), 1, now_ps)

    def receive(self, flags: int) -> bytes:
        """Return the next part of a message."""
        self._check(NEVER_RECEIVES)
        self.is_signaled = False
        if not self.parts:
            if self.kind == REQ and self._talks_with is None:
                raise ZmqFailureError(EFSM)
            if self.kind == REP and self._talks_with is not None:
                raise ZmqFailureError(EFSM)
            self._wait(self.can_receive, flags, Option.RCVTIMEO, "recv")
            self.parts.extend(self._next_message())
        return self.parts.popleft()

    def can_receive(self) -> bool:
        """Return whether there is a message, or the rest of one."""
        if self.parts or self._queue:
            return True
        if self.kind == REQ:
            return self._talks_with is not None and bool(self._talks_with.incoming.items)
        if self.kind in PUBLISHES or (self.kind == REP and self._talks_with is not None):
            return False
        return any(pipe.incoming.items for pipe in self.pipes)

    def _next_message(self) -> Message:
        if self._queue:
            return self._queue.popleft()
        if self.kind == REQ:
            pipe, self._talks_with = self._talks_with, None
            assert pipe is not None
        else:
            pipe = next(pipe for pipe in self.pipes if pipe.incoming.items)
            # The next message comes from the next one that has some.
            self.pipes.remove(pipe)
            self.pipes.append(pipe)
        # All that has come but the last message is dropped where a program asks for that.
        count = len(pipe.incoming.items) if self.options[Option.CONFLATE] else 1
        for _ in range(count):
            message: Message = pipe.incoming.items.popleft()
        pipe.incoming.take(count)
        if self.kind == ROUTER:
            return [pipe.routing_id, *message]
        if self.kind == REQ:
            return message[1:]
        if self.kind == REP:
            start = message.index(b"") + 1 if b"" in message else 0
            self._talks_with, self._envelope = pipe, message[:start]
            return message[start:]
        return message

    def events(self) -> int:
        """Return whether it can receive (1) and send (2), and be signaled by what comes next."""
        self.is_signaled = False
        if self.is_closed or self.context.is_over:
            raise ZmqFailureError(ETERM)
        return int(self.can_receive()) | (2 if self.can_send() else 0)

    def _check(self, refuses: frozenset[int]) -> None:
        if self.context.is_over:
            raise ZmqFailureError(ETERM)
        if self.kind in refuses:
            raise ZmqFailureError(errno.ENOTSUP)

    def _wait(self, check: Any, flags: int, option: int, what: str) -> None:
        timeout_ms = 0 if flags & NOBLOCK else self.options[option]
        timeout_s = None if timeout_ms < 0 else timeout_ms / 1000
        is_over = self.context.ends
        label = f"{what} of {self.describe()}"
        if not wait_until(lambda: is_over() or check(), [self], timeout_s, label):
            raise ZmqFailureError(errno.EAGAIN)
        if is_over() or self.is_closed:
            raise ZmqFailureError(ETERM)


class _Level:
    """A socket as a file that is ready as long as it can send or receive."""

    real_fd = None

    def __init__(self, core: ZmqCore) -> None:
        self._core = core
        self.process = core.process
        self.describe = core.describe
        self.sources = core.sources

    def ready(self) -> int:
        events = self._core.events()
        return (select.POLLIN if events & 1 else 0) | (select.POLLOUT if events & 2 else 0)

    def released(self, now_ps: int) -> None:
        """Leave it to the socket."""


class ZmqContextCore(Watchable):
    """A context of ZeroMQ: its sockets, and the names that these have among themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.cores: dict[ZmqCore, None] = {}
        self.names: dict[str, ZmqCore] = {}
        self.options: dict[int, int] = {}
        self.is_over = False

    def ends(self) -> bool:
        """Return whether it is being terminated."""
        return self.is_over

    def end(self) -> None:
        """Let all waits of its sockets fail, and wait until all are closed."""
        self.is_over = True
        for core in self.cores:
            core.wake()
        if self.cores and network() is not None:
            names = ", ".join(core.describe() for core in self.cores)
            label = f"term of a context of ZeroMQ whose sockets are open: {names}"
            wait_until(lambda: not self.cores, [self], None, label)


def _tell(pipe: Pipe, topic: bytes, is_new: bool, now_ps: int) -> None:
    pipe.outgoing.send([(b"\1" if is_new else b"\0") + topic], len(topic) + 1, 1, now_ps)
