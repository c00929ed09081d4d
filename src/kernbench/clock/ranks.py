"""A rank: user code that thinks it blocks, run as a SimPy process (ADR-0027 D0, ADR-0060).

The user's function runs in a worker, a greenlet or a thread. When it must wait, the worker hands
main the handle; there the rank's process yields the handle to SimPy and switches back when it has
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any

from simpy import Event, Interrupt

from kernbench.clock.carriers import Carrier, on_greenlet
from kernbench.clock.handles import Handle
from kernbench.clock.sites import UserSite, user_site

if TYPE_CHECKING:
    from kernbench.clock.simulation import Simulation


_MOST_CONTEXTS = 32


class Rank:
    """One rank's code, the process that stands for it, and how it ended.

    ``on_end`` is called once, on main, when the function has returned or raised; the outcome is
    in :attr:`error`. ``local`` is for the runtime: whatever it keeps per rank. ``carrier`` makes
    what the code runs on.
    """

    __slots__ = (
        "_body", "_calls", "_on_end", "_process", "_simulation", "_to_main", "_worker", "aborted",
        "ended_ps", "error", "host_ps", "local", "rank_id", "since_ps", "threads", "waiting_for",
    )  # fmt: skip

    def __init__(
        self,
        simulation: Simulation,
        rank_id: int,
        body: Callable[[], object],
        on_end: Callable[[Rank], None],
        local: Any = None,
        carrier: Carrier = on_greenlet,
    ) -> None:
        self.rank_id = rank_id
        self.local = local
        self.error: BaseException | None = None
        self.ended_ps: int | None = None
        self.waiting_for: Handle | None = None
        self.since_ps = simulation.now_ps
        self.host_ps = 0
        """Its host's time when it last waited while that was ahead of the clock."""
        self.aborted = False
        self._calls: list[Callable[[], object]] = []
        self.threads: list[Rank] = []
        """Further threads of control that share its number and ``local``."""
        self._simulation = simulation
        self._body = body
        self._on_end = on_end
        self._worker, self._to_main = carrier(self._run)
        self._process = simulation.env.process(self._drive())

    def __repr__(self) -> str:
        return f"Rank({self.rank_id})"

    @property
    def alive(self) -> bool:
        return self.ended_ps is None

    def wait(self, handle: Handle) -> None:
        """Leave the rank until ``handle`` has ended. Only for the running rank itself."""
        is_over = False
        while not is_over:
            self.waiting_for = handle
            self.since_ps = self._simulation.env.now_ps
            self._to_main(handle)
            is_over = not self._calls
            while self._calls:
                try:
                    self._calls.pop(0)()
                except BaseException:
                    self._simulation.idling.cancel(handle)
                    raise
                is_over = handle.callbacks is None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the rank where it waits, before it waits on; it may raise."""
        self._calls.append(function)
        self._process.interrupt(function)

    def abort(self) -> None:
        """End the rank by raising SystemExit where it waits; its ``finally`` blocks run."""
        if self.alive and not self.aborted:
            self.aborted = True
            self._process.interrupt()
        for thread in self.threads:
            thread.abort()

    def kill(self) -> None:
        """End the rank at once, off the clock, when nothing drives the simulation any more."""
        for thread in self.threads:
            if thread.alive:
                thread.kill()
        self.aborted = True
        self._simulation.running = self
        try:
            # A rank that waits in a finally block comes back here; the next throw ends that wait.
            for _ in range(100):
                # False also for one that has not begun; throwing would end main instead.
                if not self._worker:
                    break
                self._worker.throw(SystemExit)
        finally:
            self._simulation.running = None
        if self.ended_ps is None:
            self.ended_ps = self._simulation.now_ps

    def site(self) -> UserSite | None:
        """Return the user's line at which the rank waits, or None when it does not wait."""
        return user_site(self._worker.gr_frame) if self._worker else None

    @property
    def frame(self) -> FrameType | None:
        """Its innermost frame; None while it runs on the greenlet of another thread."""
        return self._worker.gr_frame

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:
            self.error = _cause(error)

    def _drive(self) -> Generator[Event, Any, None]:
        simulation = self._simulation
        worker = self._worker
        resume: Callable[..., Any] = worker.switch
        reason: tuple[type[SystemExit], ...] = ()
        if self.aborted:
            resume, reason = worker.throw, (SystemExit,)
        # A rank that was aborted before it began never runs its body.
        while worker or not self.aborted:
            simulation.running = self
            try:
                target = resume(*reason)
            finally:
                simulation.running = None
            if worker.dead:
                break
            resume, reason = worker.switch, ()
            try:
                yield target
            except Interrupt as interrupt:
                if interrupt.cause is None:
                    resume, reason = worker.throw, (SystemExit,)
                    # The clock need not go to where it slept.
                    simulation.idling.cancel(target)
        if self.ended_ps is None:
            self.waiting_for = None
            self.ended_ps = simulation.now_ps
            self._on_end(self)


def _cause(error: BaseException) -> BaseException:
    """Return the interrupt that an error wraps, or else the error itself."""
    cause: BaseException | None = error
    for _ in range(_MOST_CONTEXTS):
        if cause is None:
            break
        if isinstance(cause, KeyboardInterrupt):
            return cause
        cause = cause.__context__
    return error
