"""What is under way between two ends of a connection, and waits for it in simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from typing import Any, Protocol, TypeVar

from kernbench.clock import Simulation
from kernbench.hardware import PS_PER_US, HostSpec, ceil_ps
from kernbench.torch_bridge.processes.process import Process, current
from kernbench.torch_bridge.python.locks import WaitingLock

_Found = TypeVar("_Found")
_PS_PER_S = 10**12
_PS_PER_BYTE_AT_1_GBPS = 1000


class Watcher(Protocol):
    """Somebody who looks again when something has changed."""

    def wake(self) -> None:
        """Look again."""


class Wake(WaitingLock):
    """A lock that is taken until something that a thread waits for may have happened."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label
        self.acquire()

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self.locked():
            self.release()


class Watchable:
    """Something whose state threads wait for."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []

    def changed(self) -> None:
        """Resume whoever waits for it, in the order in which they began to."""
        for watcher in list(self.watchers):
            watcher.wake()


def arrive() -> int:
    """Let the simulation reach the calling process's time, all Python so far included; return it.

    What others do until then has happened then, and nothing that they do later.
    """
    host = current().host
    # Asking for it pays what is owed.
    reached_ps = host.now_ps
    host.reach()
    return reached_ps


def wait_until(
    check: Callable[[], _Found],
    watched: Iterable[Watchable],
    timeout_s: float | None,
    label: str,
    wake: Wake | None = None,
) -> _Found:
    """Block the calling thread until ``check`` finds something; return what it found last.

    With a timeout of 0 s it looks once; None waits for ever. Errors name the wait by ``label``.
    """
    arrive()
    until = check()
    if until:
        return until
    if timeout_s is not None and timeout_s <= 0:
        # A program may look again and again, and others must come to do what it looks for.
        current().host.glance(label)
        return check()
    simulation = current().session.run.simulation
    end_ps = None if timeout_s is None else simulation.now_ps + int(timeout_s * _PS_PER_S)
    own = Wake(label) if wake is None else wake
    own.label = label
    sources = list(watched)
    for source in sources:
        source.watchers.append(own)
    try:
        while not until:
            left_s = -1.0 if end_ps is None else (end_ps - simulation.now_ps) / _PS_PER_S
            if (end_ps is not None and left_s <= 0) or not own.acquire(timeout=left_s):
                return check()
            until = check()
            if own is wake:
                break
    finally:
        for watchable in sources:
            watchable.watchers.remove(own)
    return until


class Wire:
    """How long what is sent takes from one process to another; by default no time."""

    def __init__(
        self, latency_us: Fraction = Fraction(0), spec: HostSpec | None = None, extra_ps: int = 0
    ) -> None:
        slowdown = Fraction(1) if spec is None else spec.slowdown
        self.own_ps = ceil_ps(latency_us * slowdown * PS_PER_US)
        """What of the latency passes on the hosts."""
        self.latency_ps = self.own_ps + extra_ps
        self._byte_ps = Fraction(0)
        if spec is not None:
            self._byte_ps = slowdown * _PS_PER_BYTE_AT_1_GBPS / spec.socket_gbps

    def transfer_ps(self, size_bytes: int) -> int:
        """Return for how long so many bytes keep a connection busy."""
        return ceil_ps(size_bytes * self._byte_ps)


class Channel(Watchable):
    """What one end has sent to the other, in order: bytes of a stream, datagrams or messages.

    An item arrives a latency after its last byte was handed over; one follows another. At most
    ``capacity`` units (bytes, or messages) may be unread.
    """

    def __init__(self, simulation: Simulation, wire: Wire | None, capacity: float) -> None:
        super().__init__()
        self._simulation = simulation
        self._wire = wire
        self._free_ps = 0
        self.capacity = capacity
        self.unread = 0
        """Units that were sent and not taken, also those under way."""
        self.items: deque[Any] = deque()
        """What has arrived."""
        self.is_ended = False
        """Whether the end of what was sent has arrived."""
        self.has_reader = True
        self._held: list[Callable[[int], None]] = []
        """What was sent before there was another end."""

    def connect(self, wire: Wire) -> None:
        """Let what was sent so far, and what will be, take its way to the other end."""
        self._wire = wire
        held, self._held = self._held, []
        for call in held:
            call(self._simulation.now_ps)

    @property
    def space(self) -> float:
        """How many units more can be sent now."""
        return self.capacity - self.unread

    def send(self, item: Any, size_bytes: int, units: int, now_ps: int) -> None:
        """Send an item; the caller knows that there is space."""
        self.unread += units
        self._hand_over(item, size_bytes, now_ps)

    def _hand_over(self, item: Any, size_bytes: int, now_ps: int) -> None:
        if self._wire is None:
            self._held.append(partial(self._hand_over, item, size_bytes))
            return
        self._free_ps = max(now_ps, self._free_ps) + self._wire.transfer_ps(size_bytes)
        self._at_other_end(lambda: self.items.append(item))

    def occupy_sender(self, now_ps: int) -> None:
        """Let the calling process take the time of what it has sent, as far as that is its own.

        On one host the kernel brings a message to its receiver within the sender's call.
        """
        assert self._wire is not None
        taken_ps = max(self._free_ps, now_ps) + self._wire.own_ps - now_ps
        current().host.work("socket", taken_ps)

    def end(self, now_ps: int, then: Callable[[], object] = lambda: None) -> None:
        """Send the end, after which nothing comes."""
        if self._wire is None:
            return
        self._free_ps = max(now_ps, self._free_ps)

        def ended() -> None:
            self.is_ended = True
            then()

        self._at_other_end(ended)

    def take(self, units: int) -> None:
        """Note that so many units were read: there is space for others."""
        self.unread -= units
        self.changed()

    def _at_other_end(self, arrived: Callable[[], object]) -> None:
        def arrive() -> None:
            arrived()
            self.changed()

        assert self._wire is not None
        at_ps = self._free_ps + self._wire.latency_ps
        if at_ps <= self._simulation.now_ps:
            arrive()
        else:
            self._simulation.call_at(at_ps, arrive)


def host_spec(process: Process) -> HostSpec:
    """Return what is known of the hosts of a process's run; defaults where nothing is said."""
    return process.session.run.machine.spec.host or HostSpec(cpu="unknown")
