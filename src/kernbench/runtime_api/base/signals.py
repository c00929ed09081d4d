"""What wakes kernel programs that wait for memory to change (ADR-0032)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kernbench.commands import Atomic, DmaRead, Transfer

if TYPE_CHECKING:
    from kernbench.clock import Handle, Simulation
    from kernbench.interleaved import Span, Watched
    from kernbench.memory import Buffer
    from kernbench.runtime_api.base.replay_queue import ReplayQueue
    from kernbench.sanitizer import Clock

Wake = Callable[[], None]
Heard = Mapping[int, "Clock"]
"""The newest launch known to have begun, by timeline: all that it follows has ended."""


class Signals:
    """Strands parked until watched bytes change; a write wakes those whose bytes it changed."""

    def __init__(self, simulation: Simulation, replay_queue: ReplayQueue) -> None:
        self._simulation = simulation
        self._replay_queue = replay_queue
        self._waiting: dict[Wake, Sequence[Watched]] = {}
        self._is_due = False
        self._sent: dict[Buffer, dict[tuple[int, int], tuple[Span, Heard]]] = {}
        """For the sanitizer: by the bytes that were changed, what was released there so far."""

    def release(self, spans: Iterable[Span], heard: Heard) -> None:
        """Publish what an acquire of these bytes learns from now on."""
        for span in spans:
            sent = self._sent.setdefault(span.buffer, {})
            _, before = sent.get((span.low, span.high), (span, {}))
            sent[span.low, span.high] = (span, newest(before, heard))

    def acquire(self, spans: Iterable[Span]) -> Heard:
        """Return what has been released at these bytes."""
        clocks: Heard = {}
        for span in spans:
            for sent, heard in self._sent.get(span.buffer, {}).values():
                if sent.meets(span):
                    clocks = newest(clocks, heard)
        return clocks

    def wait(self, watched: Sequence[Watched], wake: Wake) -> None:
        """Call ``wake`` once when one of the places that were read looks different."""
        self._waiting[wake] = watched

    def forget(self, wake: Wake) -> None:
        """Cancel a wait."""
        self._waiting.pop(wake, None)

    def written(self, spans: Iterable[Span]) -> None:
        """Wake those that wait for bytes written at this moment."""
        spans = [span for span in spans if span.writes]
        for wake, watched in list(self._waiting.items()):
            if any(
                item.span.meets(span) and item.has_changed for item in watched for span in spans
            ):
                self._wake(wake)

    def recorded(self) -> None:
        """Note that a command has completed whose data is pending."""
        if self._waiting and not self._is_due:
            self._is_due = True
            self._simulation.call_at(self._simulation.now_ps, self._look)

    def _look(self) -> None:
        self._is_due = False
        if self._replay_queue.has_failed:
            return
        self._replay_queue.drain()
        for wake, watched in list(self._waiting.items()):
            if any(item.has_changed for item in watched):
                self._wake(wake)

    def _wake(self, wake: Wake) -> None:
        del self._waiting[wake]
        wake()


class Knowledge:
    """What the programs of one launch learn of others through signals, for the sanitizer."""

    def __init__(self, signals: Signals, launch: Handle, begun: Clock) -> None:
        self._signals = signals
        self._launch = launch
        self.heard: Heard = {begun.timeline: begun}
        """What an acquire from the launch learns from now on."""

    def look(self, command: DmaRead | Atomic, spans: Iterable[Span]) -> None:
        """Order the launch after what was released at the bytes it has read."""
        if isinstance(command, DmaRead):
            acquires = command.volatile
        else:
            acquires = command.order in ("acquire", "acq_rel")
        if acquires:
            heard = newest(self.heard, self._signals.acquire(spans))
            self._launch.clock.put_after(
                clock for name, clock in heard.items() if self.heard.get(name) is not clock
            )
            self.heard = heard

    def tell(self, command: Transfer, spans: Iterable[Span], heard: Heard) -> None:
        """Publish what the launch had learned by a release, to those that acquire there."""
        if isinstance(command, Atomic) and command.order in ("release", "acq_rel"):
            self._signals.release(spans, heard)


def newest(heard: Heard, more: Heard) -> Heard:
    """Return the union of both; of one timeline the later launch covers the earlier."""
    clocks = dict(heard)
    for timeline, clock in more.items():
        if timeline not in clocks or clocks[timeline].index < clock.index:
            clocks[timeline] = clock
    return clocks
