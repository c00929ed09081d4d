"""The happens-before order of a run's operations, for the sanitizer (ADR-0021).

A stream runs its commands one after the other; a command follows what its rank had waited for when
it was asked for; a stream that waits for an event follows what the event stands for; a collective
follows what its ranks bring to it. Nothing else orders anything, whatever the modeled times are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kernbench.clock import Handle, Stream, UserSite, user_site
from kernbench.memory import Buffer
from kernbench.runtime_api.base.rank_state import RankState
from kernbench.runtime_api.memory.storage import BufferView, byte_span
from kernbench.sanitizer import Clock, Touch, TouchKind, TouchPart, record_touch, strided_spans

Record = Callable[[], None]
Touched = tuple[BufferView, TouchKind]
Noted = tuple["Buffer", Touch]


class Exchange(Protocol):
    """One rank's part in a collective: what the order needs of it."""

    clock: Any

    @property
    def name(self) -> str:
        """How errors name it."""

    @property
    def rank(self) -> int: ...

    @property
    def site(self) -> UserSite: ...

    @property
    def inputs(self) -> tuple[BufferView, ...]: ...

    @property
    def outputs(self) -> tuple[BufferView, ...]:
        """The same object as the inputs where it is in place."""


class _Timeline:
    """A sequence of operations: its number, its newest one, and what else the next one follows."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.newest: Clock | None = None
        self.awaited: list[Clock] = []
        self.asked: Clock | None = None
        """The call in the program that issued the newest operation."""

    @property
    def tail(self) -> list[Clock]:
        """The clocks that an operation follows if it follows this whole timeline."""
        return self.awaited if self.newest is None else [self.newest, *self.awaited]

    def next(
        self, after: Iterable[Clock], where: str = "", asked: Iterable[tuple[Clock, Clock]] = ()
    ) -> Clock:
        """Return the clock of a new operation, which follows those before and ``after``."""
        index = 0 if self.newest is None else self.newest.index + 1
        self.newest = Clock(self.number, index, [*self.tail, *after], where, asked)
        self.awaited = []
        return self.newest


class Ordering:
    """The timelines of one run with a sanitizer."""

    def __init__(self) -> None:
        self._timelines: dict[Any, _Timeline] = {}
        """Keyed by rank (its program), by stream and rank, or by channel and rank."""
        self._users: dict[Stream, list[RankState]] = {}
        """The ranks that have enqueued on a stream: usually only its owner."""
        self._brought: dict[Exchange, tuple[Any, Clock]] = {}
        """For a part of a collective that has not started: its channel, and the clock it brings."""

    def enqueue(self, state: RankState, stream: Stream, command: Handle) -> None:
        """Set the clock of a command that a rank enqueues on a stream."""
        call = self._of(state).next(())
        timeline = self._of((stream, state))
        where = f"rank {state.rank}, stream {stream.name}, at {user_site()}"
        command.clock = timeline.next((call,), where, self._others(stream, state))
        timeline.asked = call

    def begin(self, command: Handle, stream: str) -> Clock:
        """Return the clock that a kernel's signals carry to others: all it follows as it begins."""
        timeline = self._of(("begun", stream))
        index = 0 if timeline.newest is None else timeline.newest.index + 1
        timeline.newest = command.clock.beginning(timeline.number, index)
        return timeline.newest

    def goes_on_after(self, state: RankState, handle: Handle) -> None:
        """Order what a rank's program does from now on after a handle that has ended."""
        if handle.clock is not None:
            self._of(state).awaited.append(handle.clock)

    def stream_waits(self, state: RankState, stream: Stream, handle: Handle) -> None:
        """Order what a rank enqueues on a stream from now on after what a handle stands for."""
        if handle.clock is not None:
            self._of((stream, state)).awaited.append(handle.clock)

    def starts(self, state: RankState, parent: RankState) -> None:
        """Order a rank's program after that of main so far."""
        self._of(state).awaited += self._of(parent).tail

    def joins(self, state: RankState, child: RankState) -> None:
        """Order main's program after that of a rank that has ended."""
        self._of(state).awaited += self._of(child).tail

    def arrive(self, work: Exchange, state: RankState, stream: Stream, channel: Any) -> None:
        """Set the clock of a rank's part in a collective: it follows what is on its stream now."""
        before = state.channel_tails.get(channel)
        after = [*self._of(state).tail, *self._of((stream, state)).tail]
        if before is not None:
            after.append(before.clock)
        brought = self._of(("call", channel, state)).next(after, asked=self._others(stream, state))
        self._brought[work] = channel, brought
        where = f"rank {work.rank}, at {work.site}"
        work.clock = self._of((channel, state)).next((brought,), where)

    def start(self, works: Sequence[Exchange], op: str, root: int, then: Record) -> Record:
        """Order the parts of a collective that all ranks have joined after the parts they need.

        Returns a record that takes note of what they touch, then does ``then``.
        """
        arrived = [self._brought.pop(work) for work in works]
        brought = [clock for _, clock in arrived]
        # One clock for what all ranks bring, so that each part need not list all the others.
        everything = self._of(("all", arrived[0][0])).next(brought)
        touches: list[Noted] = []
        for position, work in enumerate(works):
            sources = _SOURCES.get(op, _from_all)(position, root)
            work.clock.put_after(
                [everything] if sources is None else [brought[source] for source in sources]
            )
            touches += touches_of(work.name, work.clock, _touched(work, op, position, root))
        return noting(touches, then)

    def _others(self, stream: Stream, state: RankState) -> list[tuple[Clock, Clock]]:
        """Return what other ranks have enqueued on a stream: this one follows what it knows of."""
        users = self._users.setdefault(stream, [])
        if state not in users:
            users.append(state)
        pairs = []
        for user in users:
            timeline = self._of((stream, user))
            if user is not state and timeline.asked is not None and timeline.newest is not None:
                pairs.append((timeline.asked, timeline.newest))
        return pairs

    def _of(self, key: Any) -> _Timeline:
        timeline = self._timelines.get(key)
        if timeline is None:
            timeline = self._timelines[key] = _Timeline(len(self._timelines))
        return timeline


def touches_of(name: str, clock: Clock, touched: Iterable[Touched]) -> list[Noted]:
    """Return the touches of an operation other than a kernel on the buffers of tensors."""
    return [
        (view.buffer, Touch(kind, clock, clock.where, (_part(name, view),), key))
        for view, kind in touched
        for key in [(kind, view.offset, view.shape, view.strides, view.dtype.itemsize)]
    ]


def noting(touches: list[Noted], then: Record | None) -> Record:
    """Return a record that notes touches, then runs ``then``."""

    def record() -> None:
        for buffer, touch in touches:
            record_touch(buffer, touch)
        if then is not None:
            then()

    return record


def _touched(work: Exchange, op: str, position: int, root: int) -> list[Touched]:
    """Return what a rank's part in a collective does to its tensors."""
    in_place = work.outputs is work.inputs
    only_reads = (op == "broadcast" and position == root) or (op == "reduce" and position != root)
    written = TouchKind.READ if only_reads else TouchKind.WRITE
    touched = [(view, written) for view in work.outputs]
    if not in_place:
        touched += [(view, TouchKind.READ) for view in work.inputs]
    return touched


def _from_all(position: int, root: int) -> None:
    """Every rank's result depends on the inputs of all."""


def _from_root(position: int, root: int) -> tuple[int, ...]:
    return (root,)


def _to_root(position: int, root: int) -> tuple[int, ...] | None:
    return None if position == root else ()


_SOURCES: dict[str, Callable[[int, int], tuple[int, ...] | None]] = {
    "broadcast": _from_root,
    "scatter": _from_root,
    "reduce": _to_root,
    "gather": _to_root,
    "send_recv": lambda position, root: (0,) if position else (),
}
"""Positions whose input a rank's result depends on; None for all."""


def _part(name: str, view: BufferView) -> TouchPart:
    size = view.dtype.itemsize
    low, high = byte_span(view)
    return TouchPart(
        name, low, high, lambda: strided_spans(view.offset, view.shape, view.strides, size), size
    )
