"""``torch.ahbm.Stream`` and ``Event``: several queues on a SIP, and waits between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernbench.clock import Handle, Stream, StreamCommand
from kernbench.errors import UsageError
from kernbench.saved import Action

if TYPE_CHECKING:
    from kernbench.runtime_api.base.run import Run

_PS_PER_MS = 1e9


class Marker(StreamCommand):
    """A command that ends when everything before it on its stream has.

    One that takes time does so for its time stamp: what follows it starts as on an idle device.
    """

    def __init__(self, run: Run, stamp_ps: int = 0) -> None:
        super().__init__(run.simulation.env, "an event")
        self._stamp_ps = stamp_ps
        self.parts = stamp_ps > 0

    def begin(self) -> int:
        return self._stamp_ps


class WaitFor(StreamCommand):
    """A command that blocks its stream until a handle has ended."""

    only_waits = True

    def __init__(self, run: Run, awaited: Handle) -> None:
        super().__init__(run.simulation.env, f"a stream's wait for {awaited.label}")
        self.awaited = awaited

    def begin(self) -> int | None:
        if not self.awaited.done:
            self.awaited.when_done(self._has_ended)
            return None
        return 0

    def _has_ended(self, _: object) -> None:
        self.ended_by = self.awaited.ended_by
        self.end_after(0)

    def finish(self) -> None:
        error = self.awaited.error
        if error is not None:
            self.awaited.error_seen = True
            raise error

    def waits_for(self) -> tuple[int, ...]:
        return self.awaited.waits_for()

    def describe(self) -> str:
        return f"a stream's wait for {self.awaited.describe()}"


class DeviceStream:
    """An in-order queue of a SIP, as ``torch.cuda.Stream`` is one.

    Kernels of one SIP share its PEs: those of different streams run one after the other, in the
    order in which they could start; copies to the host and collectives run concurrently.
    """

    def __init__(self, run: Run, sip_id: int, queue: Stream) -> None:
        self._run = run
        self.sip_id = sip_id
        self.queue = queue

    def __repr__(self) -> str:
        return f"Stream({self.queue.name})"

    def synchronize(self) -> None:
        """Block the calling rank until everything on the stream has ended."""
        if self.queue.tail is not None:
            self._run.wait(self.queue.tail)

    def query(self) -> bool:
        """Return whether everything on the stream has ended; does not wait for it."""
        return self.queue.tail is None or self._run.poll(self.queue.tail)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event (a new one, or ``event``) on the stream and return it."""
        event = Event(self._run) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Make later commands of the stream wait for an event; the host continues."""
        run, awaited = self._run, event.handle
        if awaited is None:
            return
        if run.keeper is not None:
            run.keeper.waits(Action.STREAM_WAITS, awaited, run.keeper.stream(self.queue))
        if run.ordering is not None:
            run.ordering.stream_waits(run.rank_state, self.queue, awaited)
        if not awaited.done:
            run.enqueue(self.queue, WaitFor(run, awaited))

    def wait_handle(self, handle: Handle) -> Handle:
        """Make later commands wait for a handle; the host continues. Returns the wait's handle."""
        run, waiting = self._run, WaitFor(self._run, handle)
        if run.keeper is not None:
            run.keeper.waits_behind(waiting, handle, run.keeper.stream(self.queue))
        if run.ordering is not None:
            run.ordering.stream_waits(run.rank_state, self.queue, handle)
        run.enqueue(self.queue, waiting)
        return waiting

    def wait_stream(self, other: DeviceStream) -> None:
        """Make later commands wait for all that is on another stream now."""
        self.wait_event(other.record_event())


class Event:
    """A point in a stream; in modeled time, so timing is always enabled."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.handle: Marker | None = None
        """None before the event was recorded."""

    def record(self, stream: DeviceStream | None = None) -> None:
        """Capture all that is on a stream now, by default the current one."""
        run = self._run
        self.handle = Marker(run)
        queue = (run.current_stream() if stream is None else stream).queue
        if run.keeper is not None:
            run.keeper.makes(self.handle, Action.MARK, run.keeper.stream(queue))
        run.enqueue(queue, self.handle)

    def wait(self, stream: DeviceStream | None = None) -> None:
        """Make a stream, by default the current one, wait for the event."""
        (self._run.current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return whether it has happened, True for one that was never recorded."""
        return self.handle is None or self._run.poll(self.handle)

    def synchronize(self) -> None:
        """Block the calling rank until it has happened."""
        if self.handle is not None:
            self._run.wait(self.handle)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the modeled milliseconds from this event to another.

        Raises:
            UsageError: One of them has not happened yet.
        """
        for which, event in (("the first", self), ("the second", end_event)):
            if event.handle is None or not event.handle.done:
                raise UsageError(
                    f"elapsed_time: {which} event has not happened; record it and synchronize()"
                )
        assert self.handle is not None
        assert end_event.handle is not None
        keeper = self._run.keeper
        if keeper is not None:
            keeper.reads_times()
        return (end_event.handle.end_ps - self.handle.end_ps) / _PS_PER_MS


@contextmanager
def using(run: Run, stream: DeviceStream | None) -> Iterator[None]:
    """Make a stream the calling rank's current one; None changes nothing.

    Raises:
        UsageError: It is of another SIP than the rank is bound to.
    """
    state = run.rank_state
    if stream is not None and stream.sip_id != state.sip_id:
        raise UsageError(
            f"{stream!r} is of SIP {stream.sip_id}, but rank {state.rank} is bound to SIP "
            f"{state.sip_id}"
        )
    outer = state.stream
    state.stream = outer if stream is None else stream
    try:
        yield
    finally:
        state.stream = outer
