"""What comes before a segment of a program: launches that have ended, and parts of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kernbench.sanitizer.facts.order import Clock


@dataclass(slots=True, eq=False)
class Launch:
    """Programs that begin together, numbered on from ``first``."""

    first: int
    grid: tuple[int, int, int]
    clock: Clock | None
    begun: Clock | None
    """What it follows, which is less than its clock will know once it has heard others."""
    who: str
    taken_up: list[int] = field(default_factory=list)
    """Segments of other launches that programs of this one have acquired."""
    newest_before: list[Launch] | None = None
    """Per timeline, the newest launches that it follows, once somebody has asked."""
    beginning: Past | None = None
    """What comes before all of its programs, once somebody has asked."""
    ending: Past | None = None
    """What comes before those that follow it, once somebody has asked."""

    def is_one_with(self, other: Launch) -> bool:
        """Return whether both are parts of one operation."""
        return (
            self.clock is not None
            and other.clock is not None
            and (self.clock.timeline, self.clock.index) == (other.clock.timeline, other.clock.index)
        )


class Past:
    """Launches that have ended, per timeline the newest, and how far programs of others have got.

    A launch that has ended stands for all that came before it, so a past does not grow with the
    length of a run.
    """

    __slots__ = ("_merged", "reached", "whole")

    def __init__(self) -> None:
        self.whole: dict[int, int] = {}
        """By timeline, the index of the newest launch that has ended."""
        self.reached: dict[int, int] = {}
        """By program of a launch that need not have ended, the newest segment."""
        self._merged: set[int] = set()

    def has_whole(self, launch: Launch) -> bool:
        """Return whether all that a launch does comes before."""
        clock = launch.clock
        return clock is not None and self.whole.get(clock.timeline, -1) >= clock.index

    def follow(self, begun: Clock) -> None:
        """Put in what a clock knows."""
        _raise_to(self.whole, known_before(begun))

    def merge(self, other: Past) -> None:
        """Put in what comes before something that comes before."""
        if id(other) in self._merged:
            return
        self._merged.add(id(other))
        _raise_to(self.whole, other.whole)
        _raise_to(self.reached, other.reached)

    def prune(self, launch_of: Callable[[int], Launch]) -> None:
        """Forget programs of launches that have ended; nothing is merged afterwards."""
        self._merged.clear()
        for program in [each for each in self.reached if self.has_whole(launch_of(each))]:
            del self.reached[program]


def known_before(begun: Clock) -> Mapping[int, int]:
    """Return per timeline the index of the newest operation that ends before one begins."""
    known = dict(begun.known)
    if begun.index > known.get(begun.timeline, -1):
        known[begun.timeline] = begun.index - 1
    return known


def index_of(launch: Launch) -> int:
    """Return the place of a launch on its timeline."""
    assert launch.clock is not None
    return launch.clock.index


def _raise_to(known: dict[int, int], others: Mapping[int, int]) -> None:
    for key, value in others.items():
        if known.get(key, -1) < value:
            known[key] = value
