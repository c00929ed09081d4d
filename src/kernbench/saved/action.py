"""The actions of ranks: which there are, and what the three numbers behind each one are of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt


class Action(IntEnum):
    """What an action is; its three numbers are named behind it.

    A *handle* is two numbers: who made it, and by which of its actions.
    """

    LAUNCH = 0
    """A kernel: work, addresses, stream."""
    TRANSFER = 1
    """A fill or a copy: work, addresses, stream."""
    KEPT_LAUNCH = 2
    """A kernel that decides by data: work, addresses, stream."""
    HOST_LAUNCH = 3
    """The host's time for a launch: label."""
    BLOCK = 4
    """Wait for a handle."""
    POLL = 5
    """Ask whether a handle has ended."""
    MARK = 6
    """Record an event on a stream: stream."""
    STREAM_WAITS = 7
    """Make a stream wait for a handle: handle, stream."""
    STREAM_IS_BEHIND = 8
    """The same for a collective that the host then regards as ended: handle, stream."""
    ARRIVE = 9
    """Bring a part to a collective: meeting, part, the spans that it uses."""
    BIND = 10
    """Take a device as the current one: SIP."""
    SPAWN = 11
    """Start ranks: the first one's actor, how many, number of the spawn."""
    JOIN = 12
    """Wait for all ranks of a spawn: number of the spawn."""
    DRAIN = 13
    """Let everything come to its end."""

    # Of hosts that run ahead of their devices, as those of PyTorch programs do.
    PAY = 14
    """Let a host spend what it owes: calls of Python, number of what it owes."""
    SPEND = 15
    """Let a host spend the time of a launch: number of a spend."""
    OPERATION = 16
    """An operation: timing, stream, number of a spend."""
    COPY = 17
    """A copy from or to the host, for which a launch was spent: work, stream."""
    HOST_MARK = 18
    """Record an event on a stream: stream."""
    HOST_STREAM_WAITS = 19
    """Make a stream wait for a handle: handle, stream."""
    HOST_POLL = 20
    """Ask whether something has ended: label."""
    HOST_GLANCE = 21
    """Look at what others have done: label."""
    HOST_CLOCK = 22
    """Read a clock."""
    HOST_SLEEP = 23
    """Sleep: picoseconds."""
    CATCH_UP = 24
    """Wait for the host's time."""
    HOST_WAIT = 25
    """Wait for a handle."""
    HOST_READ = 26
    """Read a result that the host has waited for."""
    HOST_ALLOCATE = 27
    """Get memory from the driver."""
    WAIT_DATA = 28
    """Wait until all ranks have called a collective: handle of the part."""
    SET_KEY = 29
    """Set a key that others may wait for: label."""
    WAIT_KEYS = 30
    """Wait until keys are set: their labels as a tuple, label."""
    GRAPH_OPERATIONS = 31
    """Operations that the latest spend has launched: timings as a tuple, stream."""
    GRAPH_COPY = 32
    """A copy that it has launched: work, stream."""
    GRAPH_MARK = 33
    """An event that it has launched: stream."""
    GRAPH_STREAM_WAITS = 34
    """A stream's wait that it has launched: handle, stream."""
    RANGE_BEGIN = 35
    """Begin a range of a host's time that the program names: its number among those of the rank."""
    RANGE_END = 36
    """End it: label, the number."""

    TAIL = -2
    """In place of who made a handle: whatever is last on a stream."""


# What a number of an action is of. Those without a place of their own in a file are here.
HANDLE = "handle"
"""Who made it, and, as the next number, by which of its actions."""
PLACE = "place"
ANY, TIME_PS = "any number", "time in ps"
WORKS, TUPLES, STREAMS, SPENDS, OWED = "works", "tuples", "streams", "spends", "owed"
MEETINGS, LABELS, SIPS, ACTORS, SPAWNS = "meetings", "labels", "SIPs", "actors", "spawns"
LATE = "late spends"
"""0 for none, else 1 above the number of a spend."""

OPERANDS: dict[Action, tuple[str, ...]] = {
    Action.LAUNCH: (WORKS, TUPLES, STREAMS),
    Action.TRANSFER: (WORKS, TUPLES, STREAMS),
    Action.KEPT_LAUNCH: (WORKS, ANY, STREAMS),
    Action.HOST_LAUNCH: (WORKS,),
    Action.BLOCK: (HANDLE, PLACE),
    Action.POLL: (HANDLE, PLACE),
    Action.MARK: (STREAMS,),
    Action.STREAM_WAITS: (HANDLE, PLACE, STREAMS),
    Action.STREAM_IS_BEHIND: (HANDLE, PLACE, STREAMS),
    Action.ARRIVE: (MEETINGS, WORKS, TUPLES),
    Action.BIND: (SIPS,),
    Action.SPAWN: (ACTORS, ANY, ANY),
    Action.JOIN: (SPAWNS,),
    Action.DRAIN: (),
    Action.PAY: (TIME_PS, OWED),
    Action.SPEND: (SPENDS,),
    Action.OPERATION: (WORKS, STREAMS, SPENDS),
    Action.COPY: (WORKS, STREAMS),
    Action.HOST_MARK: (STREAMS, ANY),
    Action.HOST_STREAM_WAITS: (HANDLE, PLACE, STREAMS),
    Action.HOST_POLL: (LABELS,),
    Action.HOST_GLANCE: (LABELS,),
    Action.HOST_CLOCK: (),
    Action.HOST_SLEEP: (TIME_PS,),
    Action.CATCH_UP: (),
    Action.HOST_WAIT: (HANDLE, PLACE, LATE),
    Action.HOST_READ: (),
    Action.HOST_ALLOCATE: (),
    Action.WAIT_DATA: (HANDLE, PLACE),
    Action.SET_KEY: (LABELS,),
    Action.WAIT_KEYS: (TUPLES, LABELS),
    Action.GRAPH_OPERATIONS: (TUPLES, STREAMS),
    Action.GRAPH_COPY: (WORKS, STREAMS),
    Action.GRAPH_MARK: (STREAMS,),
    Action.GRAPH_STREAM_WAITS: (HANDLE, PLACE, STREAMS),
    Action.RANGE_BEGIN: (ANY,),
    Action.RANGE_END: (LABELS, ANY),
}
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
