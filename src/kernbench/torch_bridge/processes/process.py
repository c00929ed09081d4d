"""A simulated process: the state of one rank, although all ranks share one real process."""

from __future__ import annotations

import signal
import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from kernbench.clock import Handle, Rank, StreamCommand
from kernbench.op_log import HostRange, OpLog
from kernbench.runtime_api import Action
from kernbench.torch_bridge.memory import BlockObserver, CachingAllocator, PrivatePool
from kernbench.torch_bridge.ordering.order import ProcessOrder
from kernbench.torch_bridge.processes.eager_host import host_of
from kernbench.torch_bridge.processes.host import Host
from kernbench.torch_bridge.processes.registrations import SHARED, Registrations

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from logging import Logger
    from multiprocessing.process import BaseProcess
    from types import ModuleType

    from kernbench.runtime_api import RankState
    from kernbench.torch_bridge.front.session import Session
    from kernbench.torch_bridge.graphs import Capture
    from kernbench.torch_bridge.processes.float32 import Float32


class Ranges:
    """The named ranges of one process's host time: the ended ones, and the open ones."""

    def __init__(self, rank: int, log: OpLog, host: Host) -> None:
        self.ended: list[HostRange] = []
        self.rank = rank
        self._log, self._host = log, host
        self._nested: list[int] = []
        self._open: dict[int, tuple[str, int]] = {}
        """Names and starts by handle."""
        self._next_handle = 1

    def push(self, name: str, now_ps: int) -> int:
        """Begin a range inside the innermost open one, and return its depth."""
        self._nested.append(self.start(name, now_ps))
        return len(self._nested) - 1

    def pop(self, now_ps: int) -> int:
        """End the innermost open range, and return its depth; -1 if there is none."""
        if not self._nested:
            return -1
        self.end(self._nested.pop(), now_ps)
        return len(self._nested)

    def start(self, name: str, now_ps: int) -> int:
        """Begin a range that may overlap others, and return its handle."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._open[handle] = (name, now_ps)
        if self._host.notes is not None:
            self._host.notes(Action.RANGE_BEGIN, handle, "", 0)
        return handle

    def end(self, handle: int, now_ps: int) -> None:
        """End a range by its handle; an unknown handle is ignored, as by NVTX."""
        begun = self._open.pop(handle, None)
        if begun is None:
            return
        name, start_ps = begun
        if self._host.notes is not None:
            self._host.notes(Action.RANGE_END, name, "", handle)
        host_range = HostRange(self.rank, name, start_ps, now_ps)
        self.ended.append(host_range)
        self._log.host_ranges.append(host_range)

    def mark(self, name: str, now_ps: int) -> None:
        """Record a named moment."""
        self.end(self.start(name, now_ps), now_ps)


_Part = TypeVar("_Part")


@dataclass(slots=True, eq=False)
class ThreadState:
    """State that CUDA keeps per thread: the current device and streams."""

    sip_id: int
    stream: Any = None
    streams: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SignalState:
    """What a process does when it receives signals, and how often its alarm rings."""

    handlers: dict[int, Any] = field(default_factory=dict)
    """Handlers that it has set, by signal."""
    interval_ps: int = 0
    wakeup_fd: int = -1
    """The file that is written to when a handler is called; -1 for none."""
    paused: Handle | None = None
    """What ends with the next signal."""

    def begin_program(self) -> None:
        """Keep what a new program keeps: which signals its parent ignored."""
        ignored = {n: how for n, how in self.handlers.items() if how is signal.SIG_IGN}
        self.handlers = ignored


@dataclass(slots=True, eq=False)
class RandomState:
    """The state of a device's random generator; generators may share one."""

    seed: int = 0
    offset: int = 0
    """How many numbers were drawn, rounded as on a GPU."""
    position: Any = None
    """The state of the CPU's generator there; None if it follows from seed and offset."""

    def go_to(self, offset: int, position: Any = None) -> None:
        """Continue from an offset; its numbers follow from the seed unless their state is given."""
        if position is not None or offset != self.offset:
            self.position = position
        self.offset = offset


class _ThreadEnd(Handle):
    """Ends with the thread."""


class RankThread:
    """A thread that a process has started."""

    def __init__(self, process: Process, thread: threading.Thread) -> None:
        self.thread = thread
        self.is_daemon = thread.daemon
        simulation = process.session.run.simulation
        self.end = _ThreadEnd(simulation.env, f"the end of thread {thread.name}")
        self.rank: Rank | None = None

    def ended(self, _: Rank) -> None:
        """Resume whoever waits for the thread."""
        self.end.end_after(0)


class MemoryUse(BlockObserver, Protocol):
    """Notes the allocations of a process."""

    def backward_begins(self, outputs: Any) -> None:
        """Note that autograd begins a backward pass from some outputs."""

    def backward_ended(self) -> None:
        """Note that it has ended one."""

    def finish(self) -> None:
        """Note that the program has ended, or another thread of it."""


class PendingWork(Protocol):
    """A call of a collective that may be pending."""

    def wait_on_host(self) -> None:
        """Block the rank until it has ended in simulated time."""


class OwnState(Protocol):
    """An attribute that a process has assigned."""

    is_unread: bool
    """Whether only code of its process can ask for it."""

    def show(self) -> None:
        """Show the process's value."""

    def hide(self) -> bool:
        """Show what all have, and return whether the process still has something else."""

    def copy(self) -> OwnState:
        """Return the same for another process."""

    def is_own_in_place_of_alls(self) -> bool:
        """Return whether something of its own modules stands for something of all."""


class Priced(Protocol):
    """An observer whose costs depend on the precision that a process requests."""

    def price(self, precision: Float32) -> None:
        """Set the costs of operations by the requested precision of float32 products."""


class Process:
    """The process of one rank, or the one that runs the program before it spawns ranks."""

    def __init__(self, session: Session, rank: int, environ: dict[Any, Any]) -> None:
        self.session = session
        self.rank = rank
        per_host = session.run.machine.sips_per_host
        self.node = rank // per_host
        """Its host: the processes of one see only that one's devices."""
        self.first_sip = self.node * per_host
        """The SIP that is device 0 of its host."""
        self.environ = environ
        """Its environment variables, encoded as ``os.environ`` keeps them."""
        self.hash_seed: bytes | None = None
        """What its sets of strings are in the order of; None: of the real process's seed."""
        self.state: RankState = session.run.rank_state
        """The runtime's state of the rank."""
        self.host = host_of(session.run, rank)
        run = session.run
        self.order: ProcessOrder | None = None
        """What orders its operations, under the sanitizer."""
        self.touching: Any = None
        """What takes note of what they touch (``dispatch.touching``), likewise."""
        if run.sanitizer is not None and run.has_data:
            self.order = ProcessOrder(rank, run.checks.allowed)
        self.saved: dict[str, Any] = {}
        """Its values of exchanged state (``globals``), while another rank runs."""
        self.ranges = Ranges(rank, session.run.op_log, self.host)
        """The named ranges of its host time."""
        self.world: Any = None
        """Its ``torch.distributed`` world, once it was used."""
        self.parts: dict[type, Any] = {}
        """What parts of the bridge keep of it, by class (:meth:`part`)."""
        self.random_state = RandomState()
        """The state of its devices' default generator."""
        self.random_positions: dict[tuple[int, int], Any] = {}
        """States of the CPU's generator that it has read, by seed and offset."""
        self.streams: dict[int, Any] = {}
        """Current streams of devices other than the current one, by SIP."""
        self.allocators: dict[int, CachingAllocator] = {}
        """Allocators of the devices that it has used, by SIP."""
        self.memory_use: MemoryUse | None = None
        """What notes its allocations, if anything does."""
        self.modules: list[ModuleType] = []
        """Its own modules, while another rank runs."""
        self.library_state: list[Any] = []
        """Its values of shared libraries' state, while another rank runs."""
        self.loggers: dict[Logger, tuple[Any, ...]] = {}
        """Its settings of loggers that some rank has changed, while another rank runs."""
        self.logging_disable: int | None = None
        """Its level of ``logging.disable``, likewise; None if it is that of all."""
        self.assigned: dict[tuple[int, Hashable], OwnState] = {}
        """What it has assigned to attributes of shared modules and classes, by owner and name."""
        self.registered: dict[int, tuple[dict[Any, Any], tuple[Any, ...]]] = {}
        """What it has of its own in tables of shared modules, and what it lacks of theirs."""
        self.registrations = Registrations(SHARED)
        """Kernels that its devices run in place of PyTorch's."""
        self.reads_copies = True
        """Whether something reads what it copies to the host, other than to copy it back."""
        self.observers: list[Priced] = []
        """The observers of its threads."""
        self.precision: Float32 | None = None
        """The requested precision of float32 products; None until it differs from the default."""
        self.thread = self.main_thread = ThreadState(self.state.sip_id)
        """The state of the running thread, and of the first one."""
        self.first_sip_id = self.state.sip_id
        """The current device of new threads."""
        self.first_thread: threading.Thread | None = None
        """The thread that it began with; None for the real process's."""
        self.threads: list[RankThread] = []
        """Threads that it has started."""
        self.memory: Any = None
        """A worker's own values of its program's modules; None for ranks."""
        self.pid = 0
        """Its process id, 0 for that of the real process."""
        self.parent_pid = 0
        """The parent's process id, for a worker."""
        self.signals = SignalState()
        self.sockets: dict[int, Any] = {}
        """Its simulated sockets, by descriptor."""
        self.pipes: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
        """The ends of pipes that it has made, in that order."""
        self.workers: set[BaseProcess] = set()
        """Processes that it has started by ``multiprocessing``."""
        self.takes_number = False
        """Whether it was started singly, and gets its rank from the group that it joins."""
        self.rank_of_run: Rank | None = None
        """The simulation's rank of its main thread; None for the process on main."""
        self.capture: Capture | None = None
        """The CUDA graph capture under way."""
        self.capture_stream: Any = None
        """The default stream of ``torch.cuda.graph``."""
        self.private_pool: PrivatePool | None = None
        """The memory pool of the capture."""
        self.graph_pools: dict[Any, PrivatePool] = {}
        """Pools by their handles."""
        self.is_replaying = False
        """Whether launches only compute, as a graph's replay has their time."""
        self.exit_handlers: list[tuple[Callable[..., Any], Any, Any]] = []
        """Functions with arguments to call at its end, the latest first."""
        self.thread_handlers: list[tuple[Callable[..., Any], Any, Any]] = []
        """Likewise, but called before its threads are joined."""
        self.ends_at_once = False
        """Whether it has asked to end without all that, as by ``os._exit``."""
        self.copies: list[tuple[Any, StreamCommand, bool, str]] = []
        """Copies of pinned memory that may be under way: its storage, whether it is written."""
        self.newest_works: dict[Any, PendingWork] = {}
        """Its latest collective of each stream of NCCL's that nothing has waited for; the key
        begins with the SIP."""
        self.kept: set[Any] = set()
        """Objects that only C++ refers to, whose Python halves must stay alive."""

    def __repr__(self) -> str:
        return f"Process(rank {self.rank})"

    def part(self, kind: type[_Part]) -> _Part:
        """Return the process's own object of a class, which is made when it is first asked for."""
        known: _Part | None = self.parts.get(kind)
        if known is None:
            known = self.parts[kind] = kind()
        return known

    def leave(self) -> None:
        """Let go of the run, at its end.

        C++ may hold tensors, and with them what their storages refer to, for as long as the real
        process lives: the garbage collector does not see from them what they are part of.
        """
        self.saved.clear()
        for allocator in self.allocators.values():
            allocator.leave()
        if self.order is not None:
            self.order.leave()

    def price(self, precision: Float32) -> None:
        """Set the costs of operations by the requested precision of float32 products."""
        self.precision = precision
        for observer in self.observers:
            observer.price(precision)

    def join_as(self, rank: int) -> None:
        """Take its rank from the first group that it joins, if it has none yet."""
        if self.takes_number:
            self.takes_number = False
            self.rank = self.state.rank = self.host.rank = self.ranges.rank = rank
            if self.order is not None:
                self.order.rank = rank
            run = self.session.run
            run.world_size = max(run.world_size, rank + 1)
            if self.rank_of_run is not None:
                self.rank_of_run.rank_id = rank

    def show(self, thread: ThreadState) -> None:
        """Make a thread's device and streams current."""
        before = self.thread
        if before is thread:
            return
        state = self.state
        before.sip_id, before.stream, before.streams = state.sip_id, state.stream, self.streams
        state.sip_id, state.stream, self.streams = thread.sip_id, thread.stream, thread.streams
        self.thread = thread

    def begin(self) -> None:
        """Record which rank of the simulation the calling thread is."""
        run = self.session.run
        self.rank_of_run = run.simulation.running
        self.state = self.host.state = run.rank_state
        self.first_sip_id = self.state.sip_id


class _Here(threading.local):
    process: Process | None = None
    is_foreign = True
    """Whether the thread is outside of the simulation, perhaps for a moment: it waits as usual
    threads do, and must not touch the simulation."""
    is_importing = False
    """Whether it executes a shared library's module, for all ranks."""


HERE = _Here()
"""The process that the calling thread belongs to."""


def current() -> Process:
    """Return the process that the calling code belongs to."""
    process = HERE.process
    if process is None:
        raise RuntimeError("this thread belongs to no simulated process")
    return process


def add_to_report(name: str, part: Any) -> None:
    """Add what can be written as JSON to the report of the calling code's run, under a name."""
    current().session.run.parts[name] = lambda: part


def remark(line: str) -> None:
    """Add a line to the end of the report of the calling code's run."""
    current().session.run.remarks.append(lambda: [line])


def warn_once(subject: str, text: str) -> None:
    """Warn at the caller's caller, once per run for all processes."""
    process = HERE.process
    if process is not None and subject not in process.session.said:
        process.session.said.add(subject)
        warnings.warn(f"{text} (said once per run)", stacklevel=3)
