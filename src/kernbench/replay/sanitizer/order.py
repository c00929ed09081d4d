"""What is known to come before what: vector clocks over the timelines of a run (ADR-0021).

A *timeline* is a sequence of operations of which each follows the one before it: a stream, or one
rank's calls on one process group. An operation is a timeline and an index on it. Whoever is
ordered behind it, a stream that waits for its event or a host that waits for its handle, knows it
and everything that it knows.

Source: Lamport, "Time, clocks, and the ordering of events in a distributed system", CACM 21(7),
1978; Mattern, "Virtual time and global states of distributed systems", 1989.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Known = Mapping[int, int]
"""Per timeline the index of the newest operation that is known to have ended."""

NOTHING: Known = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Clock:
    """One operation, and what is known to have ended before it began."""

    timeline: int
    index: int
    known: Known
    where: str = ""
    """Who asked for it and in which line, in words."""

    def follows(self, other: Clock) -> bool:
        """Return whether the other operation has certainly ended before this one begins."""
        if other.timeline == self.timeline:
            return other.index <= self.index
        return self.known.get(other.timeline, -1) >= other.index


def joined(known: Known, *clocks: Clock | None) -> Known:
    """Return what is known to somebody who waits for operations; None stands for no operation.

    >>> fill = Clock(0, 5, NOTHING)
    >>> dict(joined({1: 2}, fill, Clock(1, 3, joined(NOTHING, fill))))
    {1: 3, 0: 5}
    """
    for clock in clocks:
        # Who knows an operation knows all that it knew.
        if clock is None or known.get(clock.timeline, -1) >= clock.index:
            continue
        known = merged(known, clock.known)
        known = {**known, clock.timeline: clock.index}
    return known


def merged(a: Known, b: Known) -> Known:
    """Return what both know together; one of the two where it knows all that the other does."""
    if a is b or not b:
        return a
    news = {timeline: index for timeline, index in b.items() if a.get(timeline, -1) < index}
    return {**a, **news} if news else a
