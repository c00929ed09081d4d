"""What orders the operations of a run, as the sanitizer must know it (ADR-0021).

A stream runs its commands one after the other; a command follows what its rank had waited for when
it was asked for; a stream that waits for an event follows what the event stands for; a collective
follows what its ranks bring to it. Nothing else orders anything, whatever the modeled times are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.replay import (
    NOTHING,
    Clock,
    Kind,
    Known,
    Part,
    Touch,
    joined,
    merged,
    record_touch,
    strided_spans,
)
from kernbench.runtime_api.in_flight import byte_span
from kernbench.runtime_api.storage import BufferView
from kernbench.sim_engine import user_site

if TYPE_CHECKING:
    from kernbench.memory import Buffer
    from kernbench.runtime_api.rank_state import RankState
    from kernbench.runtime_api.work import Work
    from kernbench.sim_engine import Handle, Stream

Record = Callable[[], None]
Touched = tuple[BufferView, Kind]
Noted = tuple["Buffer", Touch]


class _Timeline:
    """A sequence of operations: its number, its newest operation, and what that one knows."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.index = -1
        self.known: Known = NOTHING
        self.asked = (-1, -1)
        """Of the newest operation: the timeline and the index of the program's call."""

    def next(self, known: Known, where: str) -> Clock:
        self.index += 1
        self.known = known
        return Clock(self.number, self.index, known, where)

    def added_to(self, known: Known) -> Known:
        """Return what is known to somebody who comes after all of this."""
        # Whoever knows the newest operation need not know what was waited for since.
        known = merged(known, self.known)
        return known if self.index < 0 else merged(known, {self.number: self.index})


class Ordering:
    """The timelines of one run with a sanitizer."""

    def __init__(self) -> None:
        self._timelines: dict[Any, _Timeline] = {}
        """By rank (its program), by stream and rank, by channel and rank."""
        self._users: dict[Stream, list[RankState]] = {}
        """Which ranks have put something on a stream: mostly the one that owns it."""
        self._arrived: dict[Work, tuple[Known, Work | None, Any]] = {}
        """Of collectives not started: what a rank brings, its call before this one, the channel."""

    def enqueue(self, state: RankState, stream: Stream, command: Handle) -> None:
        """Give a command that a rank puts on a stream its clock."""
        program = self._of(state)
        program.index += 1
        state.known = {**state.known, program.number: program.index}
        known = self._on(stream, state)
        timeline = self._of((stream, state))
        timeline.asked = (program.number, program.index)
        where = f"rank {state.rank}, stream {stream.name}, at {user_site()}"
        command.clock = timeline.next(known, where)

    def stream_waits(self, state: RankState, stream: Stream, handle: Handle) -> None:
        """Let what a rank puts on a stream later follow what a handle stands for."""
        self._on(stream, state)
        timeline = self._of((stream, state))
        timeline.known = joined(timeline.known, handle.clock)

    def arrive(self, work: Work, state: RankState, stream: Stream, channel: Any) -> None:
        """Take what a rank brings to a collective: all that its stream has been given by now."""
        known = self._on(stream, state)
        self._arrived[work] = (known, state.channel_tails.get(channel), channel)

    def _on(self, stream: Stream, state: RankState) -> Known:
        """Return what comes before anything that a rank puts on a stream now.

        That is what others have put there too, if they certainly did so earlier.
        """
        users = self._users.setdefault(stream, [])
        if state not in users:
            users.append(state)
        known = state.known
        for user in users:
            timeline = self._of((stream, user))
            number, index = timeline.asked
            if user is state or known.get(number, -1) >= index:
                known = timeline.added_to(known)
        return known

    def start(self, works: Sequence[Work], root: int, then: Record) -> Record:
        """Give the parts of a collective that all ranks have come to their clocks.

        Returns a record that takes note of what they touch, then does ``then``.
        """
        brought = []
        channels = []
        for work in works:
            known, before, channel = self._arrived.pop(work)
            brought.append(known if before is None else joined(known, before.clock))
            channels.append(channel)
        touches: list[Noted] = []
        everything: Known = NOTHING
        for known in brought:
            everything = merged(everything, known)
        op = works[0].signature.op
        for position, work in enumerate(works):
            sources = _SOURCES.get(op, _from_all)(position, root)
            known = everything
            if sources is not None:
                known = brought[position]
                for source in sources:
                    known = merged(known, brought[source])
            timeline = self._of((channels[position], work.rank))
            work.clock = timeline.next(known, f"rank {work.rank}, at {work.site}")
            touches += touches_of(work.name, work.clock, _touched(work, position, root))
        return noting(touches, then)

    def _of(self, key: Any) -> _Timeline:
        found = self._timelines.get(key)
        if found is None:
            found = self._timelines[key] = _Timeline(len(self._timelines))
        return found


def touches_of(name: str, clock: Clock, touched: Iterable[Touched]) -> list[Noted]:
    """Return what an operation that is no kernel does to the buffers of some tensors."""
    return [
        (view.buffer, Touch(kind, clock, clock.where, (_part(name, view),), _key(view, kind)))
        for view, kind in touched
    ]


def noting(touches: list[Noted], then: Record | None) -> Record:
    """Return a record that takes note of touches, then does ``then``."""

    def record() -> None:
        for buffer, touch in touches:
            record_touch(buffer, touch)
        if then is not None:
            then()

    return record


def _touched(work: Work, position: int, root: int) -> list[Touched]:
    """Return what a rank's part in a collective does to its tensors."""
    in_place = work.outputs is work.inputs
    op = work.signature.op
    only_reads = (op == "broadcast" and position == root) or (op == "reduce" and position != root)
    written = Kind.READ if only_reads else Kind.WRITE
    touched = [(view, written) for view in work.outputs]
    if not in_place:
        touched += [(view, Kind.READ) for view in work.inputs]
    return touched


def _from_all(position: int, root: int) -> None:
    """What the ranks get is made of what all of them bring."""


def _from_root(position: int, root: int) -> tuple[int, ...]:
    return (root,)


def _to_root(position: int, root: int) -> tuple[int, ...] | None:
    return None if position == root else ()


def _to_receiver(position: int, root: int) -> tuple[int, ...]:
    return (0,) if position else ()


_SOURCES: dict[str, Callable[[int, int], tuple[int, ...] | None]] = {
    "broadcast": _from_root,
    "scatter": _from_root,
    "reduce": _to_root,
    "gather": _to_root,
    "send_recv": _to_receiver,
}
"""Whose contribution a rank cannot end without; None for everybody's."""


def _part(name: str, view: BufferView) -> Part:
    size = view.dtype.itemsize
    low, high = byte_span(view)
    return Part(
        name, low, high, lambda: strided_spans(view.offset, view.shape, view.strides, size), size
    )


def _key(view: BufferView, kind: Kind) -> Any:
    return (kind, view.offset, view.shape, view.strides, view.dtype.itemsize)
