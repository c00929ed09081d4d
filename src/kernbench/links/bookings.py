"""When one link is busy with transfers of kernels, booked in any order of time.

Collectives take a link from one end of their work to the other (``network``). A kernel's transfers
are short and many, and the loads of a program run ahead of its stores: one that is asked for later
may begin earlier. So each takes what is left of the link from the moment that it is ready on. The
link never idles while something is ready, and whoever asks in which order makes no difference to
when all of it has passed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_MOST = 256


class LinkBookings:
    """Disjoint intervals in which the link is busy; the oldest are forgotten and count as full."""

    __slots__ = ("_ends", "_full_until_ps", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._full_until_ps = 0

    @property
    def end_ps(self) -> int:
        """When the last of them has passed."""
        return self._ends[-1] if self._ends else self._full_until_ps

    def book(self, ready_ps: int, wire_ps: int) -> tuple[int, int]:
        """Occupy the link for ``wire_ps``, where it is free from ``ready_ps`` on.

        Returns when the first byte goes in and when the last one has.

        >>> link = LinkBookings()
        >>> link.book(100, 10), link.book(0, 105), link.book(0, 5)
        ((100, 110), (0, 115), (115, 120))
        """
        now = max(ready_ps, self._full_until_ps)
        if not wire_ps:
            return now, now
        starts, ends = self._starts, self._ends
        place = bisect_right(ends, now)
        begin = -1
        left = wire_ps
        while left:
            if place < len(starts) and starts[place] <= now:
                now = ends[place]
                place += 1
                continue
            begin = now if begin < 0 else begin
            free = left if place == len(starts) else min(starts[place] - now, left)
            now += free
            left -= free
        self._take(begin, now)
        return begin, now

    def _take(self, begin: int, end: int) -> None:
        """Mark an interval as busy; intervals that touch it are merged with it."""
        starts, ends = self._starts, self._ends
        first = bisect_left(ends, begin)
        last = bisect_right(starts, end)
        if first < last:
            begin, end = min(begin, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [begin]
        ends[first:last] = [end]
        if len(starts) > _MOST:
            self._full_until_ps = ends[len(starts) - _MOST - 1]
            del starts[: len(starts) - _MOST], ends[: len(ends) - _MOST]
