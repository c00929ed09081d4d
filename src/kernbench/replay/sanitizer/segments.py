"""What programs have told each other through atomics: the order inside of launches (ADR-0021 D6).

What a program does is cut into *segments*: a new one begins behind each release, and where the
program takes up (acquires) what others have released. A segment follows the one before it, the
segments that it has acquired, and at the start of a launch everything that the launch follows.
So two accesses are in order if a walk back from one finds the other; nobody keeps a clock per
program, which would be as long as there are programs.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.replay.sanitizer.order import Clock
from kernbench.replay.sanitizer.places import coordinates

Array = npt.NDArray[Any]

_MOST_REMEMBERED = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class _Launch:
    """Programs that begin together, numbered on from ``first``."""

    first: int
    grid: tuple[int, int, int]
    clock: Clock | None
    begun: Clock | None
    """What it follows, which is less than its clock will know once it has heard others."""
    who: str
    taken_up: list[int] = field(default_factory=list)
    """Segments of other launches that programs of this one have acquired."""

    def follows(self, other: _Launch) -> bool:
        return (
            self.begun is not None and other.clock is not None and self.begun.follows(other.clock)
        )


class Segments:
    """The segments of one launch, or of all launches that may talk to each other."""

    def __init__(self) -> None:
        self._program_of: Array = np.zeros(1024, np.int64)
        self._count = 1
        """Segment 0 is nobody's."""
        self._launches: list[_Launch] = []
        self._firsts: list[int] = []
        self._num_programs = 1
        self._acquired: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        """By program: from which segment on it knows which others."""
        self._answers: dict[tuple[int, int], bool] = {}

    def begin(
        self,
        grid: tuple[int, int, int],
        clock: Clock | None,
        who: str,
        begun: Clock | None = None,
    ) -> Array:
        """Return the first segments of a launch, by the linear ids of its programs.

        ``begun`` stands for what the launch follows, where its clock may yet learn more.
        """
        count = grid[0] * grid[1] * grid[2]
        programs = np.arange(self._num_programs, self._num_programs + count)
        self._launches.append(_Launch(self._num_programs, grid, clock, begun or clock, who))
        self._firsts.append(self._num_programs)
        self._num_programs += count
        return self._new(programs)

    def after(self, segments: Array) -> Array:
        """Return new segments of the same programs, which follow these."""
        return self._new(self._program_of[segments])

    def acquire(self, segment: int, released: Iterable[int]) -> int:
        """Return the segment of the program that follows ``segment`` and what was released."""
        program = int(self._program_of[segment])
        before = tuple(each for each in released if self._program_of[each] != program)
        known = self._acquired.setdefault(program, [])
        if not before or (known and known[-1][1] == before):
            return segment
        mine = self._launch_of(program)
        mine.taken_up.extend(
            each for each in before if self._launch_of(int(self._program_of[each])) is not mine
        )
        found = int(self._new(np.array([program]))[0])
        known.append((found, before))
        return found

    def programs_of(self, segments: Array) -> Array:
        """Return whose segments these are, by numbers that no two launches share."""
        return self._program_of[segments]

    def is_before(self, a: int, b: int) -> bool:
        """Return whether segment ``a`` has certainly ended before ``b`` begins, or is the same."""
        answer = self._answers.get((a, b))
        if answer is None:
            if len(self._answers) >= _MOST_REMEMBERED:
                self._answers.clear()
            answer = self._answers[a, b] = self._find(a, b)
        return answer

    def describe(self, segment: int, beside: int) -> str:
        """Return how an error names a segment's program to one that looks from ``beside``."""
        program = int(self._program_of[segment])
        launch = self._launch_of(program)
        name = f"program {coordinates(program - launch.first, launch.grid)}"
        if launch is self._launch_of(int(self._program_of[beside])):
            return name
        return f"{name} of {launch.who}" if launch.who.startswith("kernel ") else launch.who

    def _find(self, a: int, b: int) -> bool:
        target = int(self._program_of[a])
        home = self._launch_of(target)
        reached: dict[int, int] = {}
        """By program, the newest segment that comes before b."""
        begun: list[_Launch] = []
        pending = [b]
        while pending:
            segment = pending.pop()
            program = int(self._program_of[segment])
            if program == target and a <= segment:
                return True
            before = reached.get(program, 0)
            if segment <= before:
                continue
            reached[program] = segment
            for number, released in reversed(self._acquired.get(program, ())):
                if number <= before:
                    break
                if number <= segment:
                    pending += released
            launch = self._launch_of(program)
            if not before and not any(launch is each for each in begun):
                begun.append(launch)
                if launch is not home and launch.follows(home):
                    return True
                for other in self._launches:
                    if other.taken_up and launch.follows(other):
                        pending += other.taken_up
        return False

    def _launch_of(self, program: int) -> _Launch:
        return self._launches[bisect.bisect_right(self._firsts, program) - 1]

    def _new(self, programs: Array) -> Array:
        start, self._count = self._count, self._count + len(programs)
        if self._count > len(self._program_of):
            longer = np.zeros(2 * self._count, np.int64)
            longer[:start] = self._program_of[:start]
            self._program_of = longer
        self._program_of[start : self._count] = programs
        return np.arange(start, self._count)
