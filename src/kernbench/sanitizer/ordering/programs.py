"""The current segments of the programs of one launch, and how atomics begin new ones."""

from __future__ import annotations

import numpy as np

from kernbench.dtypes import Array
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.ordering.ordered_map import OrderedMap
from kernbench.sanitizer.ordering.segments import Segments


class ProgramOrder:
    """The current segment of each program of one launch.

    What an atomic finds is taken up when the program next does something that matters: a program
    that polls a lock in vain has learned nothing that the next look does not tell it as well.
    """

    def __init__(
        self,
        segments: Segments,
        grid: tuple[int, int, int],
        clock: Clock | None,
        who: str,
        begun: Clock | None = None,
        device: int | None = None,
    ) -> None:
        self.segments = segments
        self.current = segments.begin(grid, clock, who, begun, device)
        """Segments, by linear program id."""
        self._found: dict[int, dict[tuple[int, int], tuple[OrderedMap, int]]] = {}
        """What each program found at a place last."""

    def of(self, programs: Array) -> Array:
        """Return the segments of programs that are about to access memory."""
        if self._found:
            self._take_up(programs)
        return np.asarray(self.current[programs])

    def synchronise(
        self,
        touched: OrderedMap,
        where: Array,
        programs: Array,
        itemsize: int,
        *,
        acquires: bool,
        released: Array,
    ) -> None:
        """Let lanes of an atomic acquire what was released, and release where ``released`` holds.

        Lanes are in program order, and one takes effect after the other.
        """
        if not acquires:
            lanes = np.flatnonzero(released)
            self._release(touched, where[lanes], programs[lanes], itemsize, follows=False)
            return
        heads = touched.heads(where, itemsize)
        for lanes in _by_program(np.flatnonzero(released), programs):
            self._find(touched, where[lanes], programs[lanes], heads[lanes])
            self._release(touched, where[lanes], programs[lanes], itemsize, follows=True)
            last = int(lanes[-1])
            for at, head in zip(
                where[lanes].tolist(), touched.heads(where[lanes], itemsize).tolist(), strict=True
            ):
                heads[last + 1 :][where[last + 1 :] == at] = head
        others = np.flatnonzero(~released & (heads != 0))
        self._find(touched, where[others], programs[others], heads[others])

    def released_by(self, programs: Array) -> Array:
        """Return the segments that end in a release with a later effect."""
        segments = self.of(programs)
        self.current[programs] = self.segments.after(segments)
        return segments

    def end(self) -> None:
        """Let what programs found last be known to everything after the launch."""
        self._take_up(np.array(list(self._found), np.int64))

    def _find(self, touched: OrderedMap, where: Array, programs: Array, heads: Array) -> None:
        for at, program, head in zip(
            where.tolist(), programs.tolist(), heads.tolist(), strict=True
        ):
            if head:
                # What is in a place now follows what was there before.
                self._found.setdefault(program, {})[id(touched), at] = touched, head

    def _take_up(self, programs: Array) -> None:
        for program in self._found.keys() & set(np.unique(programs).tolist()):
            pairs = self._found.pop(program)
            released = dict.fromkeys(
                segment for touched, head in pairs.values() for segment in touched.released(head)
            )
            self.current[program] = self.segments.acquire(int(self.current[program]), released)

    def _release(
        self, touched: OrderedMap, where: Array, programs: Array, itemsize: int, *, follows: bool
    ) -> None:
        if not len(where):
            return
        touched.release(where, self.of(programs), itemsize, follows=follows)
        ended = np.unique(programs)
        self.current[ended] = self.segments.after(self.current[ended])


def _by_program(lanes: Array, programs: Array) -> list[Array]:
    starts = np.flatnonzero(np.diff(programs[lanes], prepend=-1))
    return np.split(lanes, starts[1:]) if len(lanes) else []
