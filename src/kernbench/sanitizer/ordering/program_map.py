"""The last program to access each byte of a buffer, so that a second one is noticed.

Any order of the programs of a launch is legal on a device. So two programs that touch the same
bytes race whenever one of them writes, whichever came first in replay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.sanitizer.facts.launch import Places, coordinates

Array = npt.NDArray[Any]

_ADVICE = "programs of a launch run in no order: use an atomic, or give each its own place"


class Touched:
    """The last writer and reader of every granule of one buffer in one launch.

    Entries are 0 for nobody, ``(program + 1) * num_places + place`` for one program, and for
    several readers ``-1 - place`` of the last.
    """

    def __init__(
        self, size_bytes: int, granule: int, places: Places, grid: tuple[int, int, int]
    ) -> None:
        self._shift = granule.bit_length() - 1
        self._was_read = False
        self._places, self._num_places = places, len(places)
        self._grid = grid
        # Granules divide an element's size, which is a power of two.
        length = -(-size_bytes // granule)
        self._writer: Array = np.zeros(length, np.int64)
        self._reader: Array = np.zeros(length, np.int64)

    def read(
        self, where: Array, programs: Array, place: int, itemsize: int
    ) -> tuple[int, str] | None:
        """Note reads of ``itemsize`` bytes at ``where`` by ``programs``.

        Returns a lane that races and in words with what, or None.
        """
        codes = (programs + 1) * self._num_places + place
        for at in self._granules(where, itemsize):
            found = self._conflict(self._writer[at], programs)
            if found is not None:
                return found
            self._was_read = True
            before = self._reader[at]
            self._reader[at] = codes
            several = (before < 0) | self._others(before, programs)
            # Of several readers in this very access, one remains.
            several |= self._reader[at] // self._num_places - 1 != programs
            self._reader[at[several]] = -1 - place
        return None

    def write(
        self, where: Array, programs: Array, place: int, itemsize: int
    ) -> tuple[int, str] | None:
        """Note writes; returns as :meth:`read` does."""
        codes = (programs + 1) * self._num_places + place
        for at in self._granules(where, itemsize):
            found = self._conflict(self._writer[at], programs)
            if found is None and self._was_read:
                found = self._conflict(self._reader[at], programs)
            if found is not None:
                return found
            self._writer[at] = codes
            # Several writers in this very access: the one that remains is the other.
            remains = self._writer[at]
            found = None if (remains == codes).all() else self._conflict(remains, programs)
            if found is not None:
                return found
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
            other = f"several other programs {self._places[-1 - entry].replace('reads', 'read')}"
        else:
            program = coordinates(entry // self._num_places - 1, self._grid)
            other = f"program {program} {self._places[entry % self._num_places]}"
        return at, f"{other}; {_ADVICE}"
