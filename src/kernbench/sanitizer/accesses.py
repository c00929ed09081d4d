"""Loads, stores and atomics of a watched plan: their lanes, and the values of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernbench.commands import DmaRead, DmaWrite, Operand, Tile, Transfer
from kernbench.dtypes import Array
from kernbench.replay import AccessSite, Frame
from kernbench.sanitizer.facts.lanes import LaneFinder
from kernbench.sanitizer.facts.launch import element
from kernbench.sanitizer.facts.shadows import IDS, Shadow, clean
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.ordering.touches import is_volatile, name_of
from kernbench.sanitizer.origins import LaneUse, Origins, UsedLane

Mark = Callable[[Frame], Shadow]
"""Returns the lanes of a load that must not be used, by the numbers of their origins."""


class WatchedAccess(LaneFinder):
    """One access as checks see it: its command, its lanes (computed once), its name in errors."""

    def __init__(self, command: Transfer, site: AccessSite) -> None:
        super().__init__(site)
        self.command = command
        self.name = name_of(command)
        """Its name in errors, such as ``tt.load at x.py:3``."""
        self.is_plain = not site.atomic and not is_volatile(command)
        """Whether it takes no part in the synchronization of programs."""
        self.loaded: Tile | None = None
        """The slot of the result of a load or an atomic; None for other accesses, as below."""
        self.other: Operand | None = None
        """A load's value for masked-off lanes, if it has one."""
        self.stored: Operand | None = None
        """The value of a plain store."""
        if isinstance(command, DmaRead):
            self.loaded, self.other = command.dst, command.other
        elif isinstance(command, DmaWrite):
            self.stored = command.value
        else:
            self.loaded = command.dst

    def here(self, frame: Frame, position: int) -> str:
        """Return the name in errors of the access by the program of a flat position."""
        state: LaunchState = frame.state
        return f"{self.name} ({state.launched}, program {self.program(frame, position)})"

    def element(self, frame: Frame, byte: int) -> str:
        """Return the name in errors of the element at a byte of the buffer."""
        return element(self.buffer(frame), byte, self.site.itemsize)


class UseCheck:
    """The step before an access that checks lanes with origins that affect memory."""

    def __init__(
        self, access: WatchedAccess, origins: Origins, mask: int, gather: int, value: int
    ) -> None:
        self._access, self._origins = access, origins
        self._mask, self._gather, self._value = mask, gather, value
        """Slots of shadows; a slot that always holds None if there is nothing to check."""

    def __call__(self, frame: Frame) -> None:
        values, access = frame.values, self._access
        mask, gather, value = values[self._mask], values[self._gather], values[self._value]
        if mask is not None:
            self._report(frame, LaneUse.MASK, self._full(frame, mask))
        if gather is not None:
            active = self._full(frame, access.active(frame))
            self._report(frame, LaneUse.ADDRESS, np.where(active, self._full(frame, gather), 0))
        if value is not None:
            positions = access.find(frame).positions
            self._report(frame, LaneUse.VALUE, access.pick(value, frame, positions))

    def _report(self, frame: Frame, use: LaneUse, shadow: Array) -> None:
        """Report the origins of lanes, in the order of lanes, until one raises."""
        relevant = self._origins.relevant(shadow, use)
        while relevant.any():
            at = int(np.argmax(relevant != 0))
            number = int(relevant[at])
            self._origins[number].report(self._used(frame, use, at), frame.state)
            relevant = np.where(relevant == number, 0, relevant)

    def _used(self, frame: Frame, use: LaneUse, at: int) -> UsedLane:
        access = self._access
        if use is LaneUse.MASK:
            what, instead = "is masked by an undefined value", " or combine the masks"
        elif use is LaneUse.ADDRESS:
            what, instead = "uses an undefined address", " or mask this access too"
        else:
            lanes = access.find(frame)
            place = access.element(frame, int(lanes.where[at]))
            what, instead = f"stores an undefined value to {place}", " or mask this store too"
            at = int(lanes.positions[at])
        return UsedLane(access.here(frame, at), what, instead)

    def _full(self, frame: Frame, shadow: Array) -> Array:
        shape = (frame.num_programs, *self._access.site.access.shape)
        return np.broadcast_to(shadow, shape).reshape(-1)


class LoadShadow:
    """The step after a load: which of its lanes must not be used."""

    def __init__(
        self, access: WatchedAccess, target: int, other: int, marks: Sequence[Mark]
    ) -> None:
        self._access, self._target, self._marks = access, target, marks
        self._other = other
        """The slot of the shadow of ``other=``."""

    def __call__(self, frame: Frame) -> None:
        values, shadow = frame.values, None
        other = values[self._other]
        if other is not None:
            active = self._access.active(frame)
            if not active.all():
                shadow = clean(np.where(active, 0, other).astype(IDS))
        for mark in self._marks:
            array = mark(frame)
            if array is not None:
                shadow = array if shadow is None else np.maximum(shadow, array)
        values[self._target] = shadow
