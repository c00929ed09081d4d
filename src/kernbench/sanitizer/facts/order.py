"""Which operations precede which: vector clocks over the timelines of a run (ADR-0021).

A *timeline* is a sequence of operations of which each follows the one before it: a rank's program,
a stream as one rank uses it, or a rank's calls on one process group. An operation is a timeline
and an index on it. Whoever is ordered behind it, a stream that waits for its event or a host that
waits for its handle, knows it and everything that it knows.

Source: Lamport, "Time, clocks, and the ordering of events in a distributed system", CACM 21(7),
1978; Mattern, "Virtual time and global states of distributed systems", 1989.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernbench.checks import Allowed, remedy


class Clock:
    """One operation: its position on a timeline, and what certainly ends before it begins.

    Predecessors are given at the operation's call, and may still be pending themselves then (a
    collective that not every rank has called). So the clock is computed when it is first read,
    after the operation has ended.

    >>> fill = Clock(0, 5)
    >>> copy = Clock(1, 3, [fill])
    >>> dict(Clock(2, 0, [copy]).known)
    {0: 5, 1: 3}
    """

    __slots__ = ("_after", "_asked", "_known", "index", "timeline", "where")

    def __init__(
        self,
        timeline: int,
        index: int,
        after: Iterable[Clock] = (),
        where: str = "",
        asked: Iterable[tuple[Clock, Clock]] = (),
    ) -> None:
        self.timeline = timeline
        self.index = index
        self.where = where
        """The caller and its line, as text."""
        self._after = list(after)
        self._asked = tuple(asked)
        """Operations that it also follows if it knows their callers: (caller, operation)."""
        self._known: dict[int, int] | None = None

    def __repr__(self) -> str:
        return f"Clock({self.timeline}, {self.index}, {self.where!r})"

    def advice(self, earlier: Clock) -> str:
        """Return what would order this operation after an earlier one, as errors say it."""
        return (
            "nothing orders the two: let one wait for the other, by an event, wait_stream(), "
            f"synchronize() or wait(), {remedy(Allowed.STREAM_RACES)}"
        )

    def put_after(self, others: Iterable[Clock]) -> None:
        """Order the operation, which has not begun, after others too."""
        assert self._known is None
        self._after += others

    def beginning(self, timeline: int, index: int) -> Clock:
        """Return a clock that knows what this one follows so far, but not the operation itself."""
        assert self._known is None
        return Clock(timeline, index, self._after, self.where, self._asked)

    @property
    def known(self) -> Mapping[int, int]:
        """Per timeline the index of the newest operation that ended before."""
        if self._known is None:
            _settle(self)
            assert self._known is not None
        return self._known

    def follows(self, other: Clock) -> bool:
        """Return whether the other operation has certainly ended before this one begins."""
        if other.timeline == self.timeline:
            return other.index <= self.index
        return self.known.get(other.timeline, -1) >= other.index

    def _waits_for(self) -> list[Clock]:
        return [
            clock
            for clock in (*self._after, *(operation for _, operation in self._asked))
            if clock._known is None
        ]

    def _work_out(self) -> None:
        known: dict[int, int] = {}
        for clock in sorted(self._after, key=lambda item: -len(item.known)):
            learn(known, clock)
        told = dict(known) if self._asked else known
        for who, operation in self._asked:
            if told.get(who.timeline, -1) >= who.index:
                learn(known, operation)
        self._known = known
        # Those that came before are not looked up through this one.
        self._after, self._asked = [], ()


def learn(known: dict[int, int], clock: Clock) -> None:
    """Add to what is known an operation, and all that it follows."""
    # A clock that knows an operation knows all that it knew.
    if known.get(clock.timeline, -1) >= clock.index:
        return
    for timeline, index in clock.known.items():
        if known.get(timeline, -1) < index:
            known[timeline] = index
    known[clock.timeline] = clock.index


def _settle(clock: Clock) -> None:
    """Compute what a clock knows, after all that it follows, without recursion."""
    pending = [clock]
    while pending:
        missing = pending[-1]._waits_for()
        if missing:
            pending += missing
        else:
            last = pending.pop()
            if last._known is None:
                last._work_out()
