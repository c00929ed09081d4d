"""A simulated process: what each rank has of its own although all share one real process."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kernbench.clock import Handle
from kernbench.torch_bridge.processes.host import Host
from kernbench.torch_bridge.processes.ranges import Ranges
from kernbench.torch_bridge.processes.registrations import SHARED, Registrations

if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger
    from multiprocessing.process import BaseProcess
    from types import ModuleType

    from kernbench.clock import Rank
    from kernbench.runtime_api import RankState
    from kernbench.torch_bridge.front.session import Session
    from kernbench.torch_bridge.graphs import Capture
    from kernbench.torch_bridge.memory import CachingAllocator, PrivatePool
    from kernbench.torch_bridge.processes.float32 import Float32


@dataclass(slots=True, eq=False)
class ThreadState:
    """What CUDA keeps for each thread, while another thread of the process runs."""

    sip_id: int
    stream: Any = None
    streams: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RandomState:
    """What the random numbers of devices come from; generators may share one."""

    seed: int = 0
    offset: int = 0
    """How many numbers were drawn, as a GPU counts them."""
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
        """Wake whoever waits for the thread."""
        self.end.end_after(0)


class Priced(Protocol):
    """What takes the times of operations from what a process asks for."""

    def price(self, precision: Float32) -> None:
        """Let operations cost what they do where this is asked of products of float32."""


class Process:
    """One rank's process, or the one that runs the program before it spawns ranks."""

    def __init__(self, session: Session, rank: int, environ: dict[Any, Any]) -> None:
        self.session = session
        self.rank = rank
        self.environ = environ
        """Its environment variables, encoded as ``os.environ`` keeps them."""
        self.state: RankState = session.run.rank_state
        """What the runtime keeps about the rank."""
        self.host = Host(session.run, rank)
        self.saved: dict[str, Any] = {}
        """Its values of state that the real process has once, while another rank runs."""
        self.ranges = Ranges(rank, session.run.op_log)
        """What it calls parts of its own time."""
        self.world: Any = None
        """Its ``torch.distributed`` world, once it was asked for."""
        self.context_parallel: Any = None
        """What it has set of context parallel attention, once it has."""
        self.random_state = RandomState()
        """Of the generator of its devices."""
        self.random_positions: dict[tuple[int, int], Any] = {}
        """States of the CPU's generator that it has been told of, by seed and offset."""
        self.streams: dict[int, Any] = {}
        """The current ones of devices that it has left for another, by SIP."""
        self.allocators: dict[int, CachingAllocator] = {}
        """Of the devices that it has used, by SIP."""
        self.modules: list[ModuleType] = []
        """Its own modules, while another rank runs."""
        self.library_state: list[Any] = []
        """Its own values of what shared libraries keep, while another rank runs."""
        self.loggers: dict[Logger, tuple[Any, ...]] = {}
        """Its loggers, where some rank has changed one, while another rank runs."""
        self.logging_disable: int | None = None
        """The level that it has disabled logging to, likewise; None as all have it."""
        self.registrations = Registrations(SHARED)
        """What its devices run in place of PyTorch's kernels."""
        self.observers: list[Priced] = []
        """Of its threads."""
        self.precision: Float32 | None = None
        """What it asks of products of float32, once that is other than PyTorch's defaults."""
        self.thread = self.main_thread = ThreadState(self.state.sip_id)
        """Of the thread that runs, and of its first one."""
        self.first_sip_id = self.state.sip_id
        """The device that each thread begins with."""
        self.threads: list[RankThread] = []
        """Threads that it has started."""
        self.workers: set[BaseProcess] = set()
        """What it has started by ``multiprocessing``."""
        self.takes_number = False
        """Whether it was started by itself, and is numbered by the group that it joins."""
        self.rank_of_run: Rank | None = None
        """What runs its main thread; None for the one on main."""
        self.capture: Capture | None = None
        """What takes operations down for a CUDA graph, while that is under way."""
        self.capture_stream: Any = None
        """What ``torch.cuda.graph`` captures on unless it is told."""
        self.private_pool: PrivatePool | None = None
        """Where memory comes from meanwhile."""
        self.graph_pools: dict[Any, PrivatePool] = {}
        """By the handles that the program has."""
        self.is_replaying = False
        """Whether what it launches only computes, for its time is that of a graph."""
        self.exit_handlers: list[tuple[Callable[..., Any], Any, Any]] = []
        """Functions with their arguments that are called at its end, the latest first."""
        self.thread_handlers: list[tuple[Callable[..., Any], Any, Any]] = []
        """Likewise, before its threads are waited for."""
        self.ends_at_once = False
        """Whether it has asked for an end without all that."""
        self.kept: set[Any] = set()
        """Objects that only C++ holds, which would let their Python half die."""

    def __repr__(self) -> str:
        return f"Process(rank {self.rank})"

    def price(self, precision: Float32) -> None:
        """Let operations cost what they do where this is asked of products of float32."""
        self.precision = precision
        for observer in self.observers:
            observer.price(precision)

    def join_as(self, rank: int) -> None:
        """Be numbered by the first group that it joins, if nobody has numbered it before."""
        if self.takes_number:
            self.takes_number = False
            self.rank = self.state.rank = self.host.rank = self.ranges.rank = rank
            if self.rank_of_run is not None:
                self.rank_of_run.rank_id = rank

    def show(self, thread: ThreadState) -> None:
        """Show a thread's current device and streams."""
        before = self.thread
        if before is thread:
            return
        state = self.state
        before.sip_id, before.stream, before.streams = state.sip_id, state.stream, self.streams
        state.sip_id, state.stream, self.streams = thread.sip_id, thread.stream, thread.streams
        self.thread = thread

    def begin(self) -> None:
        """Take note of the rank of the run that the calling thread is."""
        run = self.session.run
        self.rank_of_run = run.simulation.running
        self.state = self.host.state = run.rank_state
        self.first_sip_id = self.state.sip_id


class _Here(threading.local):
    process: Process | None = None
    is_foreign = True
    """Whether the thread is none of the simulation's, or not for a moment: it waits as threads do,
    and must not touch the simulation."""
    is_importing = False
    """Whether it executes a library's module, for all ranks."""


HERE = _Here()
"""Which process the calling thread belongs to."""


def current() -> Process:
    """Return the process that the calling code belongs to."""
    found = HERE.process
    if found is None:
        raise RuntimeError("this thread belongs to no simulated process")
    return found


def warn_once(subject: str, text: str) -> None:
    """Warn whoever called the caller, unless a process of the run has said so for all."""
    process = HERE.process
    if process is not None and subject not in process.session.said:
        process.session.said.add(subject)
        warnings.warn(f"{text} (said once per run)", stacklevel=3)
