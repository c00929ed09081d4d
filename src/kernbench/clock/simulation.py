"""One run's virtual time: SimPy is the only scheduler, and only main drives it (ADR-0027 D0)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import simpy
from simpy import Event

from kernbench.clock.carriers import Carrier, current_greenlet, is_running_in, on_greenlet
from kernbench.clock.deadlock import deadlock_error
from kernbench.clock.event_queue import EventQueue
from kernbench.clock.handles import Handle, Timer
from kernbench.clock.idling import Bounded, Idling
from kernbench.clock.ranks import Rank
from kernbench.clock.sites import user_site
from kernbench.clock.tasks import Task
from kernbench.errors import UsageError


class OpenEnded(Protocol):
    """Pending work that ends only if something else happens first."""

    def describe(self) -> str:
        """Return what an error says about it."""

    def abandon(self) -> None:
        """End it now, as what it waits for cannot happen."""


class Simulation:
    """The clock of a run, its ranks, and the one place that advances both.

    Time is an integer number of picoseconds. The greenlet that made the simulation is *main*;
    while no rank runs, host code on main is host code too, and its waits drive the clock.
    """

    def __init__(self) -> None:
        self.env = EventQueue()
        self.ranks: list[Rank] = []
        self.running: Rank | None = None
        """The rank whose code executes now; None on main."""
        self.threads_of_main: list[Rank] = []
        """Threads of control that main has started."""
        self.open_ended: dict[OpenEnded, None] = {}
        """What is open, in the order in which it began."""
        self.woken: list[tuple[int, int, int]] = []
        """Waits that a rank's host ended, in order: who waited, until when, and that rank."""
        self.idling = Idling(self)
        self.main_waits: Callable[[], None] | None = None
        """Called before main waits."""
        self.main_resumes: Callable[[], None] | None = None
        """Called when main resumes after a wait, in which ranks have run."""
        self.host_ps: Callable[[], int] = lambda: self.now_ps
        """Returns the time of the caller's host, which may be ahead of the clock."""
        self._looking: dict[Handle, Handle] = {}
        """Waits that end once another rank has had a turn, each with what ends it."""
        self._main = current_greenlet()

    @property
    def now_ps(self) -> int:
        return self.env.now_ps

    def handle(self, label: str = "") -> Handle:
        """Return a handle that ends once its ``end_after`` is called."""
        return Handle(self.env, label)

    def timer(self, delay_ps: int, label: str = "") -> Timer:
        """Return a handle that ends ``delay_ps`` from now."""
        return Timer(self.env, delay_ps, label)

    def ended(self, label: str = "") -> Handle:
        """Return a handle that has ended."""
        handle = Handle(self.env, label)
        handle.callbacks = None  # type: ignore[assignment]
        return handle

    def wait(self, handle: Handle) -> None:
        """Block the caller, a rank or main, until ``handle`` has ended; raise its error.

        A handle that has ended returns at once, without a switch.

        Raises:
            DeadlockError: Called on main, and nothing can end the handle any more.
        """
        if handle.callbacks is not None:
            if self._looking and handle not in self._looking:
                self._look_again()
            rank = self.running
            if rank is None:
                self.run_until(handle)
            else:
                rank.wait(handle)
            if handle.woken_by >= 0:
                self.has_woken(handle, rank)
        if handle.error is not None:
            handle.error_seen = True
            raise handle.error

    def wake(self, handle: Handle) -> None:
        """End a handle now; if a rank's code does it, whoever waits has waited for that rank."""
        if self.running is not None:
            handle.woken_by = self.running.rank_id
        handle.end_after(0)

    def has_woken(self, handle: Handle, rank: Rank | None) -> None:
        """Note who ended a rank's wait, or that of main, which is rank 0 in the log."""
        waiter = 0 if rank is None else rank.rank_id
        self.woken.append((waiter, self.env.now_ps, handle.woken_by))

    def sleep(self, delay_ps: int) -> None:
        """Let ``delay_ps`` of host time pass for the caller, a rank or main."""
        self.wait(Timer(self.env, delay_ps, "host time"))

    def idle(self, delay_ps: int, label: str) -> None:
        """Sleep in a wait that a program may repeat for ever, and that errors call ``label``.

        Raises:
            DeadlockError: It has, and nothing else happens.
        """
        self.wait(self.idling.timer(delay_ps, label))

    def look_again(self, delay_ps: int, label: str, repeats: bool) -> None:
        """Idle until another rank has had a turn, in which it may have written what is looked for.

        One who ``repeats`` such a wait has written nothing meanwhile: others need not look.
        """
        if self._looking and not repeats:
            self._look_again()
        turn = self.handle(label)
        wait = Bounded(self.idling, turn, delay_ps)
        self._looking[wait] = turn
        self.wait(wait)
        self._looking.pop(wait, None)

    def _look_again(self) -> None:
        """Wake who looks at what others write, once the clock has reached the caller's host."""
        for turn in self._looking.values():
            turn.end_after(self.host_ps() - self.now_ps)
        self._looking.clear()

    def wait_at_most(self, handle: Handle, delay_ps: int | None) -> bool:
        """Block the caller until ``handle`` has ended or ``delay_ps`` are over; whether it has.

        Without a time it has.
        """
        if delay_ps is None:
            self.wait(handle)
        elif not handle.done:
            self.wait(Bounded(self.idling, handle, delay_ps))
        return handle.done

    def run_until(self, handle: Handle) -> None:
        """Advance the clock until ``handle`` has ended. Only main may do this.

        Raises:
            DeadlockError: No event is left; lists every rank.
        """
        self._check_main()
        if self.main_waits is not None:
            self.main_waits()
        try:
            self.env.run(until=handle)
        except RuntimeError:
            # SimPy's only sign that the queue ran dry; errors of ranks and commands never
            # come this way (see Handle.error).
            if handle.callbacks is None or self.env.peek() != simpy.core.Infinity:
                raise
            handle.callbacks.clear()
            raise deadlock_error(self, handle) from None
        finally:
            if self.main_resumes is not None:
                self.main_resumes()
        if handle.callbacks is not None:
            # SimPy stopped in the middle of the handle's callbacks and put the rest in front.
            self.env.step()

    def drain(self) -> None:
        """Advance the clock until nothing is left to happen; twice is the same as once.

        Raises:
            DeadlockError: Ranks still wait then.
        """
        self._check_main()
        self.env.run()
        if self.open_ended or any(rank.alive for rank in self.ranks):
            raise deadlock_error(self, None)

    def start_rank(
        self,
        rank_id: int,
        body: Callable[[], object],
        on_end: Callable[[Rank], None],
        local: Any = None,
        carrier: Carrier = on_greenlet,
    ) -> Rank:
        """Return a new rank that starts to run ``body`` when the clock is next driven."""
        rank = Rank(self, rank_id, body, on_end, local, carrier)
        self.ranks.append(rank)
        return rank

    def move(self, ends_ps: Mapping[Event, int]) -> None:
        """Move the ends of pending handles, not before now."""
        if ends_ps:
            self.env.reschedule(ends_ps)

    def start_thread(
        self,
        rank: Rank | None,
        body: Callable[[], object],
        on_end: Callable[[Rank], None],
        local: Any,
        carrier: Carrier,
    ) -> Rank:
        """Return one more thread of control of a rank, None for main; it starts as a rank does.

        It has the rank's number, and is ended with it.
        """
        thread = Rank(self, 0 if rank is None else rank.rank_id, body, on_end, local, carrier)
        (self.threads_of_main if rank is None else rank.threads).append(thread)
        return thread

    def cancel(self, timer: Event) -> None:
        """Cancel a timer that no rank waits for any more, so that the clock need not reach it."""
        self.env.reschedule({timer: None})

    def task(
        self, steps: Generator[int | None, None, None], on_error: Callable[[Exception], None]
    ) -> Task:
        """Return a task that resumes at times of its own, once it is started."""
        return Task(self.env, steps, on_error)

    def abandon(self) -> None:
        """End what only others could have ended, after these have failed."""
        for ended in list(self.open_ended):
            ended.abandon()

    def call_at(self, time_ps: int, callback: Callable[[], None]) -> None:
        """Call back at a time, after everything that is already due then; not before now."""
        timer = Timer(self.env, max(time_ps - self.now_ps, 0))
        timer.callbacks.append(lambda _: callback())

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at this very time, after everything that is already due."""
        self.call_at(self.now_ps, callback)

    def _check_main(self) -> None:
        if not is_running_in(self._main):
            raise UsageError(
                f"a run must be waited for where it was entered, but {user_site()} waits for it "
                "from another rank or greenlet; enter a RuntimeContext of its own there"
            )
