"""Two lanes of one store on one element: which of their values stays is not defined.

Lanes that store the same value are a common idiom (a scalar stored by every lane) and no mistake.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.errors import DataRaceError
from kernbench.replay import Frame
from kernbench.sanitizer.facts.lanes import LaneFinder, Lanes
from kernbench.sanitizer.facts.launch import LaunchState, element

Array = npt.NDArray[Any]


class CollisionCheck:
    """The step after a store: whether each lane finds in memory what it has stored."""

    def __init__(self, lanes: LaneFinder, value: int) -> None:
        self._lanes, self._value = lanes, value

    def __call__(self, frame: Frame) -> None:
        found = self._lanes.overlapping(frame)
        if found is None:
            return
        site = self._lanes.site
        values = self._lanes.pick(frame.values[self._value], frame, found.positions)
        stored = _as_bytes(values.astype(site.dtype, copy=False))
        at_bytes = found.where[:, None] + np.arange(site.itemsize)
        lost = frame.memory[site.param][at_bytes] != stored
        if lost.any():
            self._refuse(frame, found, values, at_bytes, lost)

    def _refuse(
        self, frame: Frame, found: Lanes, values: Array, at_bytes: Array, lost: Array
    ) -> None:
        """Raise for the first lane whose value another lane of its program has replaced.

        Values that another program replaces are a race of programs, which is found before.
        """
        bytes_hit, which = np.unique(at_bytes, return_inverse=True)
        which = which.reshape(at_bytes.shape)
        last: Array = np.zeros(len(bytes_hit), np.int64)
        lanes: Array = np.arange(len(at_bytes))
        # Of several lanes numpy keeps the last, as the store has done.
        last[which] = lanes[:, None]
        other = last[which]
        lost &= found.programs[other] == found.programs[:, None]
        if not lost.any():
            return
        at, byte = np.unravel_index(int(np.argmax(lost)), lost.shape)
        mine, its = (self._coordinates(int(found.positions[i])) for i in (at, other[at, byte]))
        finder, site = self._lanes, self._lanes.site
        state: LaunchState = frame.state
        place = element(finder.buffer(frame), int(found.where[at]), site.itemsize)
        raise DataRaceError(
            f"tt.{site.op} at {site.line} ({state.launched}, program "
            f"{finder.program(frame, int(found.positions[at]))}) writes {values[at]} and "
            f"{values[other[at, byte]]} to {place}, by lanes {mine} and {its} of its tile; which "
            "one stays is not defined: give each lane its own element, mask all but one, or use "
            "an atomic"
        )

    def _coordinates(self, position: int) -> tuple[int, ...]:
        shape = self._lanes.site.access.shape
        inside = position % max(int(np.prod(shape, dtype=np.int64)), 1)
        return tuple(int(each) for each in np.unravel_index(inside, shape))


def _as_bytes(values: Array) -> Array:
    raw = np.ascontiguousarray(values).view(np.uint8)
    return raw.reshape(len(values), values.dtype.itemsize)
