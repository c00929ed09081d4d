"""The happens-before order of what one process does, under the sanitizer (ADR-0228).

Three kinds of timelines: the program (all threads of its process, which take turns), each stream,
and each channel of a communicator, which works beside the streams. What the program asks for
follows what the program itself follows; all else is ordered by waits alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from kernbench.checks import Allowed, remedy
from kernbench.clock import Stream, user_site
from kernbench.sanitizer import Clock
from kernbench.torch_bridge.base.modes import NO_BACKWARD, graph_task

_node: Any = torch._C._current_autograd_node
_sequence: Any = torch.autograd._get_sequence_nr
_NEVER_MADE = 2**64 - 1
"""In place of the number of a node that no operation has made."""
_MOST_MARKS = 1 << 16


class OperationClock(Clock):
    """One operation of a process: what it follows is known when it is asked for."""

    __slots__ = ("line",)

    def __init__(self, line: OrderedLine, where: str = "") -> None:
        self.timeline, self.index, self.where = line.number, line.index, where
        self._after, self._asked = [], ()
        self._known = line.known
        self.line = line

    def advice(self, earlier: Clock) -> str:
        assert isinstance(earlier, OperationClock)
        first, then = earlier.line, self.line
        after = f"an event that is recorded on {first.name} after it"
        if first.is_channel:
            missing = f": call wait() on its Work first, where {then.name} is current"
        elif then.is_host:
            missing = (
                f", and the host did not wait for it: call synchronize() of {first.name}, or of "
                f"{after}, before"
            )
        elif then.is_channel:
            missing = (
                ", as a collective follows the stream that is current at its call: let that wait "
                f"for {first.name} by wait_stream(), or by wait_event() for {after}"
            )
        else:
            missing = (
                f": between the two let {then.name} wait for {first.name} by wait_stream(), or by "
                f"wait_event() for {after}"
            )
        return f"nothing orders the two{missing}, {remedy(Allowed.STREAM_RACES)}"


class OrderedLine:
    """A sequence of operations: where it is, and what its next operation follows."""

    __slots__ = ("index", "is_channel", "is_host", "known", "name", "number")

    def __init__(self, number: int, name: str, *, is_channel: bool = False) -> None:
        self.number, self.name = number, name
        self.is_host, self.is_channel = not number, is_channel
        self.index = -1
        self.known: dict[int, int] = {}
        """The newest operation of each timeline that it follows. Clocks share it: never changed."""

    def learn(self, number: int, index: int, known: Mapping[int, int]) -> None:
        """Let what comes next follow an operation, and what that follows."""
        if number == self.number or self.known.get(number, -1) >= index:
            return
        merged = dict(self.known)
        for other, newest in known.items():
            if merged.get(other, -1) < newest:
                merged[other] = newest
        merged[number] = index
        merged.pop(self.number, None)
        self.known = merged
        # Whoever knows the operation before does not know this.
        self.index += 1

    def follow(self, other: OrderedLine) -> None:
        """Let what comes next follow all of another timeline so far."""
        self.learn(other.number, other.index, other.known)


class ProcessOrder:
    """The timelines of one process, and the streams of its backward passes."""

    def __init__(self, rank: int, allowed: frozenset[Allowed]) -> None:
        self.rank = rank
        self.finds_races = Allowed.STREAM_RACES not in allowed
        """Whether unordered touches are errors."""
        self.finds_unwritten = Allowed.UNINITIALIZED_READS not in allowed
        """Whether it is one to compute with what nothing has written."""
        self.host = OrderedLine(0, "the host")
        self._lines: dict[Hashable, OrderedLine] = {}
        """Timelines, by the queue of a stream or by channel."""
        self.replays: tuple[Stream, Stream | None, str] | None = None
        """Of the step of a graph that is replayed now: its stream, :meth:`forward_of` it, and the
        line that was captured."""
        self.freed: deque[Any] = deque()
        """Touches of memory that was freed, until memory is next given out."""
        self.freed_memory: dict[Any, Any] = {}
        """What is known of free memory, by allocator."""
        self.late: Exception | None = None
        """What was found where nothing can be raised."""
        self._task = NO_BACKWARD
        self._base: list[Stream | None] = []
        """The backward pass under way, and the streams that it may have been called on: that of
        the operation before, and that of its first one, which a hook may have chosen."""
        self._latest: Stream | None = None
        """The stream of the latest operation outside of backward passes."""
        self._sequences: list[int] = []
        """Autograd's number of the first operation on another stream than the one before."""
        self._streams: list[Stream] = []

    def leave(self) -> None:
        """Let go of the run, at its end: what is known of memory may outlive it."""
        self._lines.clear()
        self._streams.clear()
        self.replays = self._latest = None
        self._base = []

    @property
    def has_streams(self) -> bool:
        """Whether there is more than one timeline besides the program's."""
        return len(self._lines) > 1

    def _line(self, key: Hashable, name: str, *, is_channel: bool = False) -> OrderedLine:
        line = self._lines.get(key)
        if line is None:
            number = len(self._lines) + 1
            line = self._lines[key] = OrderedLine(number, name, is_channel=is_channel)
        line.follow(self.host)
        return line

    def stream(self, queue: Stream) -> OrderedLine:
        """Return the timeline of a stream, which follows what the program has waited for."""
        # A device's first queue is its default stream.
        name = f"stream {queue.name}" if "." in queue.name else f"the default stream {queue.name}"
        return self._line(queue, name)

    def raise_late(self) -> None:
        """Raise what was found where nothing could be raised."""
        error, self.late = self.late, None
        if error is not None:
            raise error

    def on_stream(self, queue: Stream) -> OperationClock:
        """Return the clock of a new operation on a stream."""
        self.raise_late()
        if self.replays is not None:
            queue, forward, _ = self.replays
        else:
            forward = self.forward_of(queue)
        line = self.stream(queue)
        if forward is not None:
            # Autograd's engine runs it on the stream of its forward operation, and lets the
            # streams of a pass wait for each other as its gradients need.
            line.follow(self.stream(forward))
        line.index += 1
        clock = OperationClock(line, self._where(line))
        if forward is not None:
            self.stream(forward).follow(line)
        return clock

    def on_host(self) -> OperationClock:
        """Return the clock of what the program does itself."""
        self.host.index += 1
        return OperationClock(self.host, self._where(self.host))

    def in_channel(self, channel: Hashable, name: str, queue: Stream | None) -> OperationClock:
        """Return the clock of a rank's part in a collective, behind a stream if it follows one."""
        line = self._line(channel, name, is_channel=True)
        if queue is not None:
            line.follow(self.stream(queue))
        line.name = name
        line.index += 1
        return OperationClock(line, f"rank {self.rank}, at {user_site()}")

    def point(self, queue: Stream) -> OperationClock:
        """Return what stands for all that is on a stream so far."""
        return OperationClock(self.stream(queue))

    def host_waits(self, clock: OperationClock | None) -> None:
        """Let the program follow an operation that it has waited for."""
        if clock is not None:
            assert clock._known is not None
            self.host.learn(clock.timeline, clock.index, clock._known)

    def host_waits_for(self, queue: Stream) -> None:
        """Let the program follow all that is on a stream."""
        self.raise_late()
        if queue in self._lines:
            self.host.follow(self.stream(queue))

    def stream_waits(self, queue: Stream, clock: OperationClock | None) -> None:
        """Let a stream follow an operation."""
        if clock is not None:
            assert clock._known is not None
            self.stream(queue).learn(clock.timeline, clock.index, clock._known)

    def meet(self, first: Stream, second: Stream) -> None:
        """Let two streams follow each other, as a copy between devices does before and after."""
        one, other = self.stream(first), self.stream(second)
        one.follow(other)
        other.follow(one)

    def is_awaited(self, clock: Clock) -> bool:
        """Return whether anything else follows an operation."""
        return any(
            line.known.get(clock.timeline, -1) >= clock.index
            for line in (self.host, *self._lines.values())
        )

    def note_forward(self, queue: Stream) -> None:
        """Note on which stream the forward pass is, which its backward pass will use."""
        if graph_task() != NO_BACKWARD:
            return
        self._latest = queue
        if self._streams and self._streams[-1] is queue:
            return
        number = _sequence() - 1
        if self._sequences and self._sequences[-1] >= number:
            # The operation before has made no node.
            self._streams[-1] = queue
            return
        self._sequences.append(number)
        self._streams.append(queue)
        if len(self._streams) > _MOST_MARKS:
            del self._sequences[: _MOST_MARKS // 2], self._streams[: _MOST_MARKS // 2]

    def forward_of(self, queue: Stream) -> Stream | None:
        """Return the forward operation's stream if autograd's engine chooses it for this one."""
        task = graph_task()
        if task == NO_BACKWARD:
            return None
        if task != self._task:
            self._task, self._base = task, [self._latest, queue]
        node = _node()
        if queue not in self._base or node is None or node._sequence_nr() == _NEVER_MADE:
            return None
        position = bisect_right(self._sequences, node._sequence_nr()) - 1
        if position < 0 or self._streams[position] is queue:
            return None
        return self._streams[position]

    def _where(self, line: OrderedLine) -> str:
        captured = "" if self.replays is None else f"{self.replays[2]}, replayed at "
        return f"rank {self.rank}, {line.name}, at {captured}{user_site()}"
