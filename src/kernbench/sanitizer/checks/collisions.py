"""Two lanes of one store that write one element: which value remains is undefined.

Lanes that store equal values are a common idiom (a scalar stored by every lane), not a mistake.
"""

from __future__ import annotations

import numpy as np

from kernbench.dtypes import Array
from kernbench.errors import DataRaceError
from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.facts.lanes import Lanes


class Collisions(Check):
    """Checks that each lane of a store finds its value in memory (ADR-0107 D1)."""

    def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        if access.stored is None:
            return []
        steps, slot = group.fetch(access.stored)
        return [*steps, _Collision(access, slot)]


class _Collision:
    def __init__(self, access: WatchedAccess, value: int) -> None:
        self._access, self._value = access, value

    def __call__(self, frame: Frame) -> None:
        overlapping = self._access.overlapping(frame)
        if overlapping is None:
            return
        site = self._access.site
        values = self._access.pick(frame.values[self._value], frame, overlapping.positions)
        stored = np.ascontiguousarray(values.astype(site.dtype, copy=False)).view(np.uint8)
        stored = stored.reshape(len(values), site.itemsize)
        at_bytes = overlapping.where[:, None] + np.arange(site.itemsize)
        lost = frame.memory[site.param][at_bytes] != stored
        if lost.any():
            self._refuse(frame, overlapping, values, at_bytes, lost)

    def _refuse(
        self, frame: Frame, triple: Lanes, values: Array, at_bytes: Array, lost: Array
    ) -> None:
        """Raise for the first lane whose value another lane of its program has replaced.

        Values that another program replaces are a race of programs, which is detected before.
        """
        bytes_hit, which = np.unique(at_bytes, return_inverse=True)
        which = which.reshape(at_bytes.shape)
        last: Array = np.zeros(len(bytes_hit), np.int64)
        lanes: Array = np.arange(len(at_bytes))
        # Of several lanes numpy keeps the last, like the store.
        last[which] = lanes[:, None]
        other = last[which]
        lost &= triple.programs[other] == triple.programs[:, None]
        if not lost.any():
            return
        at, byte = np.unravel_index(int(np.argmax(lost)), lost.shape)
        mine, its = (self._coordinates(int(triple.positions[i])) for i in (at, other[at, byte]))
        access = self._access
        raise DataRaceError(
            f"{access.here(frame, int(triple.positions[at]))} writes {values[at]} and "
            f"{values[other[at, byte]]} to {access.element(frame, int(triple.where[at]))}, by "
            f"lanes {mine} and {its} of its tile; which one stays is not defined: give each lane "
            "its own element, mask all but one, or use an atomic"
        )

    def _coordinates(self, position: int) -> tuple[int, ...]:
        shape = self._access.site.access.shape
        inside = position % max(int(np.prod(shape, dtype=np.int64)), 1)
        return tuple(int(number) for number in np.unravel_index(inside, shape))
