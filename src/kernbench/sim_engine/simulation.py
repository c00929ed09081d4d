"""One run's virtual time: SimPy is the only scheduler, and only main drives it (ADR-0027 D0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from kernbench.errors import UsageError
from kernbench.sim_engine.carriers import (
    Carrier,
    current_greenlet,
    is_running_in,
    on_greenlet,
)
from kernbench.sim_engine.deadlock import deadlock_error
from kernbench.sim_engine.handles import Handle, Timer
from kernbench.sim_engine.ranks import Rank
from kernbench.sim_engine.sites import user_site


class Simulation:
    """The clock of a run, its ranks, and the one place that advances both.

    Time is an integer number of picoseconds. The greenlet that made the simulation is *main*;
    while no rank runs, host code on main is host code too, and its waits drive the clock.
    """

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.ranks: list[Rank] = []
        self.running: Rank | None = None
        """The rank whose code executes now; None on main."""
        self._main = current_greenlet()

    @property
    def now_ps(self) -> int:
        return self.env._now  # type: ignore[return-value]

    def handle(self, label: str = "") -> Handle:
        """Return a handle that ends when somebody calls its ``end_after``."""
        return Handle(self.env, label)

    def timer(self, delay_ps: int, label: str = "") -> Timer:
        """Return a handle that ends ``delay_ps`` from now."""
        return Timer(self.env, delay_ps, label)

    def wait(self, handle: Handle) -> None:
        """Block the caller, a rank or main, until ``handle`` has ended; raise its error.

        A handle that has ended returns at once, without a switch.

        Raises:
            DeadlockError: Called on main, and nothing can end the handle any more.
        """
        if handle.callbacks is not None:
            rank = self.running
            if rank is None:
                self.run_until(handle)
            else:
                rank.wait(handle)
        if handle.error is not None:
            handle.error_seen = True
            raise handle.error

    def sleep(self, delay_ps: int) -> None:
        """Let ``delay_ps`` of host time pass for the caller, a rank or main."""
        self.wait(Timer(self.env, delay_ps, "host time"))

    def run_until(self, handle: Handle) -> None:
        """Advance the clock until ``handle`` has ended. Only main may do this.

        Raises:
            DeadlockError: No event is left; lists every rank.
        """
        self._check_main()
        try:
            self.env.run(until=handle)
        except RuntimeError:
            # SimPy's only sign that the queue ran dry; errors of ranks and commands never
            # come this way (see Handle.error).
            if handle.callbacks is None or self.env.peek() != simpy.core.Infinity:
                raise
            handle.callbacks.clear()
            raise deadlock_error(self, handle) from None
        if handle.callbacks is not None:
            # SimPy stopped in the middle of the handle's callbacks and put the rest in front.
            self.env.step()

    def drain(self) -> None:
        """Advance the clock until nothing is left to happen; doing so twice is doing it once.

        Raises:
            DeadlockError: Ranks still wait then.
        """
        self._check_main()
        self.env.run()
        if any(rank.alive for rank in self.ranks):
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

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at this very time, after everything that is already due."""
        soon = Timer(self.env, 0)
        soon.callbacks.append(lambda _: callback())

    def _check_main(self) -> None:
        if not is_running_in(self._main):
            raise UsageError(
                f"a run must be waited for where it was entered, but {user_site()} waits for it "
                "from another rank or greenlet; enter a RuntimeContext of its own there"
            )
