"""The last program to access each byte of a buffer, so that a second one is noticed.

Any order of the programs of a launch is legal on a device. So two programs that touch the same
bytes race whenever one of them writes, whichever came first in replay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.sanitizer.facts.launch import Places, coordinates
from kernbench.sanitizer.ordering.kinds import RACES, AccessKind

Array = npt.NDArray[Any]

_ADVICE = "programs of a launch run in no order: use an atomic, or give each its own place"


class Touched:
    """Who last accessed every granule of one buffer in each way in one launch.

    Entries are 0 for nobody, ``(program + 1) * num_places + place`` for one program, and for
    several that may be side by side ``-1 - place`` of the last.
    """

    def __init__(
        self, size_bytes: int, granule: int, places: Places, grid: tuple[int, int, int]
    ) -> None:
        self._shift = granule.bit_length() - 1
        self._places, self._num_places = places, len(places)
        self._grid = grid
        # Granules divide an element's size, which is a power of two.
        self._length = -(-size_bytes // granule)
        self._last: dict[AccessKind, Array] = {}

    def look(
        self, kind: AccessKind, where: Array, programs: Array, place: int, itemsize: int
    ) -> tuple[int, str] | None:
        """Note accesses to ``itemsize`` bytes at ``where`` by ``programs``.

        Returns a lane that races and in words with what, or None.
        """
        codes = (programs + 1) * self._num_places + place
        for at in self._granules(where, itemsize):
            for other in RACES[kind]:
                known = self._last.get(other)
                conflict = None if known is None else self._conflict(known[at], programs)
                if conflict is not None:
                    return conflict
            mine = self._last.get(kind)
            if mine is None:
                mine = self._last[kind] = np.zeros(self._length, np.int64)
            before = mine[at]
            mine[at] = codes
            # Several in this very access: the one that remains is the other.
            remains = mine[at]
            if kind is AccessKind.WRITE:
                conflict = None if (remains == codes).all() else self._conflict(remains, programs)
                if conflict is not None:
                    return conflict
                continue
            several = (before < 0) | self._others(before, programs)
            several |= remains // self._num_places - 1 != programs
            mine[at[several]] = -1 - place
        return None

    def _granules(self, where: Array, itemsize: int) -> list[Array]:
        first = where >> self._shift if self._shift else where
        count = max(itemsize >> self._shift, 1)
        return [first + step if step else first for step in range(count)]

    def _others(self, entries: Array, programs: Array) -> Array:
        return np.asarray((entries > 0) & (entries // self._num_places - 1 != programs))

    def _conflict(self, entries: Array, programs: Array) -> tuple[int, str] | None:
        if not entries.any():
            return None
        bad = self._others(entries, programs) | (entries < 0)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        entry = int(entries[at])
        if entry < 0:
            verb, _, where = self._places[-1 - entry].partition(" ")
            other = f"several other programs {verb.removesuffix('s')} {where}"
        else:
            program = coordinates(entry // self._num_places - 1, self._grid)
            other = f"program {program} {self._places[entry % self._num_places]}"
        return at, f"{other}; {_ADVICE}"
