"""Programs of kernels that wait for memory to change, and what wakes them (ADR-0032)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.replay import Span, Watched
    from kernbench.runtime_api.replay_queue import ReplayQueue
    from kernbench.sim_engine import Simulation

Wake = Callable[[], None]


class Signals:
    """Who waits for which bytes. Waiting costs nothing: nobody looks until something is written."""

    def __init__(self, simulation: Simulation, replay_queue: ReplayQueue) -> None:
        self._simulation = simulation
        self._replay_queue = replay_queue
        self._waiting: dict[Wake, Sequence[Watched]] = {}
        self._is_due = False

    def wait(self, watched: Sequence[Watched], wake: Wake) -> None:
        """Call ``wake`` once when one of the places that were read looks different."""
        self._waiting[wake] = watched

    def forget(self, wake: Wake) -> None:
        """Call it no more."""
        self._waiting.pop(wake, None)

    def written(self, spans: Iterable[Span]) -> None:
        """Wake those who wait for bytes that have been written at this very moment."""
        spans = [span for span in spans if span.writes]
        for wake, watched in list(self._waiting.items()):
            if any(
                each.span.meets(span) and each.has_changed for each in watched for span in spans
            ):
                self._wake(wake)

    def recorded(self) -> None:
        """Take note that a command has completed whose data waits to be computed."""
        if self._waiting and not self._is_due:
            self._is_due = True
            self._simulation.call_at(self._simulation.now_ps, self._look)

    def _look(self) -> None:
        self._is_due = False
        if self._replay_queue.has_failed:
            return
        self._replay_queue.drain()
        for wake, watched in list(self._waiting.items()):
            if any(each.has_changed for each in watched):
                self._wake(wake)

    def _wake(self, wake: Wake) -> None:
        del self._waiting[wake]
        wake()
