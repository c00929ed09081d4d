"""When collectives ran in a run of all ranks, and running them at the same times without most."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernbench.links import Times

Place = tuple[str, tuple[int, ...]]
"""What identifies a collective in any run of a program: its title, and its ranks."""


class Titled(Protocol):
    """A collective."""

    title: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """When a collective ran, with all of its ranks."""

    called_ps: int
    """When the last rank had called it."""
    starts_ps: tuple[int, ...]
    """When each rank's inputs were ready."""
    begun_ps: int
    """When it was placed on links: when the last rank had come."""
    free_ps: Times
    """When each of its links was free then."""
    placed_ps: tuple[int, ...]
    """When each rank was to end, if nothing slowed it down."""
    ends_ps: tuple[int, ...]
    """When each has ended."""


class CountedCalls:
    """How many calls of Python the ranks of a run made, each time that their hosts asked.

    What libraries do once per process counts for the rank that comes first. Which one that is may
    be otherwise in a second run of the same ranks, as they wait for others: so that one goes by the
    numbers of the first.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, deque[int]] = {}
        """Numbers of calls, by rank."""
        self._is_known = False

    def know(self, numbers: dict[int, deque[int]]) -> None:
        """Go by the numbers of an earlier run."""
        self.numbers, self._is_known = numbers, True

    def of(self, rank: int) -> Callable[[int], int]:
        """Return what takes a rank's numbers, and returns those that count."""
        numbers = self.numbers.setdefault(rank, deque())

        def note(number: int) -> int:
            numbers.append(number)
            return number

        def look_up(number: int) -> int:
            return numbers.popleft() if numbers else number

        return look_up if self._is_known else note


@dataclass
class Timetable:
    """The placements of all collectives of a run, in the order in which their meetings began."""

    num_ranks: int
    end_ps: int
    """When the run ended, of all ranks."""
    _of: dict[Place, deque[CollectiveTimes]] = field(default_factory=lambda: defaultdict(deque))
    differing: str = ""
    """The first collective that came at another time than it did there."""

    def add(self, meetings: Iterable[tuple[Place, CollectiveTimes]]) -> None:
        """Add what is known, in order."""
        for place, placement in meetings:
            self._of[place].append(placement)

    def next(self, meeting: Titled) -> CollectiveTimes | None:
        """Return when a collective runs that is about to be taken."""
        known = self._of.get((meeting.title, meeting.ranks))
        return known[0] if known else None

    def take(
        self, meeting: Titled, now_ps: int, ready_ps: dict[int, int]
    ) -> CollectiveTimes | None:
        """Return when a collective runs, of which the ranks that run were ready at these times.

        None if it came otherwise than in that run.
        """
        known = self._of.get((meeting.title, meeting.ranks))
        collective_times = known.popleft() if known else None
        if collective_times is not None and collective_times.begun_ps >= now_ps:
            starts_ps = dict(zip(meeting.ranks, collective_times.starts_ps, strict=True))
            if all(starts_ps[rank] == ready for rank, ready in ready_ps.items()):
                return collective_times
        self.differing = self.differing or meeting.title
        return None
