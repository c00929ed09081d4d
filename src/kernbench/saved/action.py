"""The actions of ranks: which there are, and what the three numbers behind each one are of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

# What a number of an action is of. Those without a place of their own in a file are here.
HANDLE = "handle"
"""Who made it, and, as the next number, by which of its actions."""
PLACE = "place"
ANY, TIME_PS = "any number", "time in ps"
WORKS, TUPLES, STREAMS, SPENDS, OWED = "works", "tuples", "streams", "spends", "owed"
MEETINGS, LABELS, SIPS, ACTORS, SPAWNS = "meetings", "labels", "SIPs", "actors", "spawns"
LATE = "late spends"
"""0 for none, else 1 above the number of a spend."""


class Action(IntEnum):
    """What an action is; its three numbers are named behind it.

    A *handle* is two numbers: who made it, and by which of its actions.
    """

    _value_: int
    operands: tuple[str, ...]

    def __new__(cls, number: int, *operands: str) -> Action:
        action = int.__new__(cls, number)
        action._value_, action.operands = number, operands
        return action

    LAUNCH = 0, WORKS, TUPLES, STREAMS
    """A kernel: work, addresses, stream."""
    TRANSFER = 1, WORKS, TUPLES, STREAMS
    """A fill or a copy: work, addresses, stream."""
    KEPT_LAUNCH = 2, WORKS, ANY, STREAMS
    """A kernel that decides by data: work, addresses, stream."""
    HOST_LAUNCH = 3, WORKS
    """The host's time for a launch: label."""
    BLOCK = 4, HANDLE, PLACE
    """Wait for a handle."""
    POLL = 5, HANDLE, PLACE
    """Ask whether a handle has ended."""
    MARK = 6, STREAMS
    """Record an event on a stream: stream."""
    STREAM_WAITS = 7, HANDLE, PLACE, STREAMS
    """Make a stream wait for a handle: handle, stream."""
    STREAM_IS_BEHIND = 8, HANDLE, PLACE, STREAMS
    """The same for a collective that the host then regards as ended: handle, stream."""
    ARRIVE = 9, MEETINGS, WORKS, TUPLES
    """Bring a part to a collective: meeting, part, the spans that it uses."""
    BIND = 10, SIPS
    """Take a device as the current one: SIP."""
    SPAWN = 11, ACTORS, ANY, ANY
    """Start ranks: the first one's actor, how many, number of the spawn."""
    JOIN = 12, SPAWNS
    """Wait for all ranks of a spawn: number of the spawn."""
    DRAIN = 13
    """Let everything come to its end."""

    # Of hosts that run ahead of their devices, as those of PyTorch programs do.
    PAY = 14, TIME_PS, OWED
    """Let a host spend what it owes: calls of Python, number of what it owes."""
    SPEND = 15, SPENDS
    """Let a host spend the time of a launch: number of a spend."""
    OPERATION = 16, WORKS, STREAMS, SPENDS
    """An operation: timing, stream, number of a spend."""
    COPY = 17, WORKS, STREAMS
    """A copy from or to the host, for which a launch was spent: work, stream."""
    HOST_MARK = 18, STREAMS, ANY
    """Record an event on a stream: stream."""
    HOST_STREAM_WAITS = 19, HANDLE, PLACE, STREAMS
    """Make a stream wait for a handle: handle, stream."""
    HOST_POLL = 20, LABELS
    """Ask whether something has ended: label."""
    HOST_GLANCE = 21, LABELS
    """Look at what others have done: label."""
    HOST_CLOCK = 22
    """Read a clock."""
    HOST_SLEEP = 23, TIME_PS
    """Sleep: picoseconds."""
    CATCH_UP = 24
    """Wait for the host's time."""
    HOST_WAIT = 25, HANDLE, PLACE, LATE
    """Wait for a handle."""
    HOST_READ = 26
    """Read a result that the host has waited for."""
    HOST_ALLOCATE = 27
    """Get memory from the driver."""
    WAIT_DATA = 28, HANDLE, PLACE
    """Wait until all ranks have called a collective: handle of the part."""
    SET_KEY = 29, LABELS
    """Set a key that others may wait for: label."""
    WAIT_KEYS = 30, TUPLES, LABELS
    """Wait until keys are set: their labels as a tuple, label."""
    GRAPH_OPERATIONS = 31, TUPLES, STREAMS
    """Operations that the latest spend has launched: timings as a tuple, stream."""
    GRAPH_COPY = 32, WORKS, STREAMS
    """A copy that it has launched: work, stream."""
    GRAPH_MARK = 33, STREAMS
    """An event that it has launched: stream."""
    GRAPH_STREAM_WAITS = 34, HANDLE, PLACE, STREAMS
    """A stream's wait that it has launched: handle, stream."""
    RANGE_BEGIN = 35, ANY
    """Begin a range of a host's time that the program names: its number among those of the rank."""
    RANGE_END = 36, LABELS, ANY
    """End it: label, the number."""

    TAIL = -2
    """In place of who made a handle: whatever is last on a stream."""


OPERANDS: dict[Action, tuple[str, ...]] = {item: item.operands for item in Action if item >= 0}
ON_HANDLES = frozenset(action for action, what in OPERANDS.items() if HANDLE in what)
"""The actions whose first two numbers are a handle."""
MAKES_HANDLES = frozenset(
    (
        Action.LAUNCH, Action.TRANSFER, Action.KEPT_LAUNCH, Action.MARK, Action.STREAM_IS_BEHIND,
        Action.ARRIVE, Action.COPY, Action.HOST_MARK, Action.GRAPH_COPY, Action.GRAPH_MARK,
    )
)  # fmt: skip
_OPERATIONS = frozenset(("operation", "streamed", "kernel operation", "as it was"))
WORKS_OF: dict[Action, frozenset[str]] = {
    Action.LAUNCH: frozenset(("kernel",)),
    Action.TRANSFER: frozenset(("transfer",)),
    Action.KEPT_LAUNCH: frozenset(("decided by data",)),
    Action.HOST_LAUNCH: frozenset(("host",)),
    Action.ARRIVE: frozenset(("part",)),
    Action.OPERATION: _OPERATIONS,
    Action.GRAPH_OPERATIONS: _OPERATIONS,
    Action.COPY: frozenset(("transfer", "as it was")),
    Action.GRAPH_COPY: frozenset(("transfer", "as it was")),
}
"""The kinds of work that actions are of."""


@dataclass(frozen=True, eq=False)
class Actor:
    """A thread of control of a run: a rank, or a thread of one; the first one is main."""

    number: int
    rank: int
    values: list[int]
    """Four numbers for each action: which one it is, and what it is done with."""


@dataclass(frozen=True)
class Actions:
    """Everything that the ranks of a run did, without what the machine made of it."""

    described: dict[str, Any]
    """What the numbers of actions stand for."""
    actors: list[Actor]
    memory_events: npt.NDArray[np.int64] | None = None
    """Events of the run's memory: the number, the actor at work, how many actions it had behind
    it. None in a run that does not record its memory."""
