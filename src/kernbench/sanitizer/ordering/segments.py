"""The order among programs that atomics establish inside of launches (ADR-0021 D6).

What a program does is cut into *segments*: a new one begins behind each release, and where the
program takes up (acquires) what others have released. A segment follows the one before it, the
segments that it has acquired, and at the start of a launch everything that the launch follows.
So two accesses are ordered if a walk back from one finds the other; there is no clock per program,
which would have an entry for each program.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from kernbench.dtypes import Array
from kernbench.replay import coordinates
from kernbench.sanitizer.facts.order import Clock

_MOST_REMEMBERED = 1 << 18
"""Programs in the pasts that are kept: a past is asked for many times in a row."""


@dataclass(slots=True, eq=False)
class Launch:
    """Programs that begin together, numbered on from ``first``."""

    first: int
    grid: tuple[int, int, int]
    clock: Clock | None
    begun: Clock | None
    """What it follows, which is less than its clock will know once it has heard others."""
    who: str
    device: int | None = None
    """Where it runs, by rank; None if that is all one."""
    taken_up: list[int] = field(default_factory=list)
    """Segments of other launches that programs of this one have acquired."""
    newest_before: list[Launch] | None = None
    """Per timeline, the newest launches that it follows; None until it is needed."""
    beginning: Past | None = None
    """What comes before all of its programs; None until it is needed."""
    ending: Past | None = None
    """What comes before those that follow it; None until it is needed."""

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
    length of a run. It is looked at from the newest on, as far as somebody has asked: what a
    program uses of others it has mostly just taken up, though they may all stand in one chain.
    """

    __slots__ = ("_merged", "pending", "reached", "whole")

    def __init__(self, pending: Iterable[int] = ()) -> None:
        self.pending = deque(pending)
        """Segments that come before, and have not been looked at."""
        self.whole: dict[int, int] = {}
        """Each timeline's index of the newest launch that has ended."""
        self.reached: dict[int, int] = {}
        """The newest segment of each program of a launch that need not have ended."""
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
        for program in [number for number in self.reached if self.has_whole(launch_of(number))]:
            del self.reached[program]


class Segments:
    """The segments of one launch, or of all launches that may synchronize."""

    def __init__(self) -> None:
        self._program_of: Array = np.zeros(1024, np.int64)
        self._count = 1
        """Segment 0 belongs to no program."""
        self._launches: list[Launch] = []
        self._firsts: list[int] = []
        self._by_timeline: dict[int, list[Launch]] = {}
        self._num_programs = 1
        self._acquired: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        """For each program, from which segment on it knows which others."""
        self._pasts: dict[int, Past] = {}
        self._remembered = 0
        self._devices: set[int] = set()

    @property
    def has_devices(self) -> bool:
        """Whether programs of more than one device take part."""
        return len(self._devices) > 1

    def are_apart(self, a: int, b: int) -> bool:
        """Return whether the programs of two segments are known to be on different devices."""
        there, here = (self._launch_of(int(self._program_of[number])).device for number in (a, b))
        return there is not None and here is not None and there != here

    def begin(
        self,
        grid: tuple[int, int, int],
        clock: Clock | None,
        who: str,
        begun: Clock | None = None,
        device: int | None = None,
    ) -> Array:
        """Return the first segments of a launch, by the linear ids of its programs.

        ``begun`` stands for what the launch follows, where its clock may yet learn more.
        """
        count = grid[0] * grid[1] * grid[2]
        programs = np.arange(self._num_programs, self._num_programs + count)
        launch = Launch(self._num_programs, grid, clock, begun or clock, who, device)
        if device is not None:
            self._devices.add(device)
        self._launches.append(launch)
        if clock is not None:
            bisect.insort(self._by_timeline.setdefault(clock.timeline, []), launch, key=index_of)
        self._firsts.append(self._num_programs)
        self._num_programs += count
        if self._acquired:
            # Now, as what it follows has just been computed.
            self._beginning(launch)
        return self._new(programs)

    def after(self, segments: Array) -> Array:
        """Return new segments of the same programs, which follow these."""
        return self._new(self._program_of[segments])

    def acquire(self, segment: int, released: Iterable[int]) -> int:
        """Return the segment of the program that follows ``segment`` and what was released."""
        program = int(self._program_of[segment])
        before = tuple(number for number in released if self._program_of[number] != program)
        known = self._acquired.setdefault(program, [])
        if not before or (known and known[-1][1] == before):
            return segment
        mine = self._launch_of(program)
        mine.taken_up.extend(
            number
            for number in before
            if self._launch_of(int(self._program_of[number])) is not mine
        )
        number = int(self._new(np.array([program]))[0])
        known.append((number, before))
        return number

    def programs_of(self, segments: Array) -> Array:
        """Return the programs of segments, by numbers that are unique among launches."""
        return self._program_of[segments]

    def is_before(self, a: int, b: int) -> bool:
        """Return whether segment ``a`` has certainly ended before ``b`` begins, or is the same."""
        program = int(self._program_of[a])
        home, mine = self._launch_of(program), self._launch_of(int(self._program_of[b]))
        if home is mine and a > b:
            # What a segment follows was there when it began.
            return False
        if home is not mine and mine.is_one_with(home):
            return True
        past = self._pasts.get(b)
        if past is None:
            past = self._pasts[b] = Past([b])
        elsewhere = None if home is mine else home
        size = len(past.reached)
        while not (is_before := _is_in(past, a, program, elsewhere)) and past.pending:
            self._step(past)
        self._remembered += len(past.reached) - size
        if self._remembered > _MOST_REMEMBERED:
            self._pasts = {b: past}
            self._remembered = len(past.reached)
        return is_before

    def describe(self, segment: int, beside: int) -> str:
        """Return how an error names a segment's program to one that looks from ``beside``."""
        program = int(self._program_of[segment])
        launch = self._launch_of(program)
        name = f"program {coordinates(program - launch.first, launch.grid)}"
        if launch is self._launch_of(int(self._program_of[beside])):
            return name
        return f"{name} of {launch.who}" if launch.who.startswith("kernel ") else launch.who

    def _step(self, past: Past) -> None:
        """Look at one more of the segments in a past, and go on with what its program took up."""
        segment = past.pending.popleft()
        program = int(self._program_of[segment])
        launch = self._launch_of(program)
        before = past.reached.get(program, 0)
        if segment > before and not past.has_whole(launch):
            past.merge(self._beginning(launch))
            past.reached[program] = segment
            known = self._acquired.get(program, [])
            for position in range(
                bisect.bisect_right(known, segment, key=lambda known: known[0]) - 1, -1, -1
            ):
                number, released = known[position]
                if number <= before:
                    break
                past.pending += released
        if not past.pending:
            past.prune(self._launch_of)

    def _beginning(self, launch: Launch) -> Past:
        """Return what comes before a launch begins.

        Launches follow launches for as long as a run goes on, so there is no recursion.
        """
        pending = [launch]
        while pending:
            last = pending[-1]
            missing = [launch for launch in self._newest_before(last) if launch.ending is None]
            if last.beginning is not None:
                pending.pop()
            elif missing:
                # Each needs its own beginning first, then all of it is known.
                unborn = [launch for launch in missing if launch.beginning is None]
                pending += unborn
                if not unborn:
                    for item in missing:
                        item.ending = self._ending(item)
            else:
                last.beginning = past = Past()
                if last.begun is not None:
                    past.follow(last.begun)
                for entry in self._newest_before(last):
                    assert entry.ending is not None
                    past.merge(entry.ending)
                past.prune(self._launch_of)
                pending.pop()
        assert launch.beginning is not None
        return launch.beginning

    def _ending(self, launch: Launch) -> Past:
        """Return what comes before anything that follows a launch, including the launch itself."""
        past = Past(launch.taken_up)
        assert launch.beginning is not None
        assert launch.clock is not None
        past.merge(launch.beginning)
        while past.pending:
            self._step(past)
        past.whole[launch.clock.timeline] = launch.clock.index
        past.prune(self._launch_of)
        return past

    def _newest_before(self, launch: Launch) -> list[Launch]:
        """Return, per timeline, the newest launches that a launch follows."""
        if launch.newest_before is not None:
            return launch.newest_before
        result = launch.newest_before = []
        if launch.begun is None:
            return result
        for timeline, index in known_before(launch.begun).items():
            launches = self._by_timeline.get(timeline, [])
            at = bisect.bisect_right(launches, index, key=index_of)
            if at:
                newest = index_of(launches[at - 1])
                first = bisect.bisect_left(launches, newest, key=index_of)
                result += launches[first:at]
        return result

    def _launch_of(self, program: int) -> Launch:
        return self._launches[bisect.bisect_right(self._firsts, program) - 1]

    def _new(self, programs: Array) -> Array:
        start, self._count = self._count, self._count + len(programs)
        if self._count > len(self._program_of):
            longer = np.zeros(2 * self._count, np.int64)
            longer[:start] = self._program_of[:start]
            self._program_of = longer
        self._program_of[start : self._count] = programs
        return np.arange(start, self._count)


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


def _is_in(past: Past, segment: int, program: int, launch: Launch | None) -> bool:
    """Return whether a segment, or all of its launch, is known to come before."""
    return segment <= past.reached.get(program, 0) or (
        launch is not None and past.has_whole(launch)
    )


def _raise_to(known: dict[int, int], others: Mapping[int, int]) -> None:
    for key, value in others.items():
        if known.get(key, -1) < value:
            known[key] = value
