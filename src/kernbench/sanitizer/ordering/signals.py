"""The step after an atomic or a volatile load: what it takes up and what it releases."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Atomic, DmaRead
from kernbench.replay import Frame
from kernbench.sanitizer.facts.lanes import LaneFinder, Lanes
from kernbench.sanitizer.facts.launch import LaunchState
from kernbench.sanitizer.ordering.ordered_map import OrderedMap

Array = npt.NDArray[Any]


class Signal:
    """Orders the program behind those whose release it found, and lets others do so with it.

    An old value that nobody reads tells nobody anything; a ``cas`` that did not find what it
    compares with has written nothing.
    """

    def __init__(self, command: Atomic | DmaRead, lanes: LaneFinder, compare: int | None) -> None:
        self._lanes, self._compare = lanes, compare
        if isinstance(command, Atomic):
            self._dst = None if command.dst is None else command.dst.slot
            self._acquires = self._dst is not None and command.order in ("acquire", "acq_rel")
            self._releases = command.kind != "load" and command.order in ("release", "acq_rel")
        else:
            self._dst, self._acquires, self._releases = command.dst.slot, True, False

    def __call__(self, frame: Frame) -> None:
        state: LaunchState = frame.state
        if state.order is None or not (self._acquires or self._releases):
            return
        touched = state.touched(self._lanes.buffer(frame))
        if not isinstance(touched, OrderedMap):
            return
        lanes = self._lanes.find(frame)
        itemsize = self._lanes.site.itemsize
        if state.issued is not None:
            # The program went on when it was issued; only its effect is here.
            if self._releases:
                segments = state.actors(lanes.programs, plain=True)
                touched.release(lanes.where, segments, itemsize, follows=False)
            return
        state.order.synchronise(
            touched,
            lanes.where,
            lanes.programs,
            itemsize,
            acquires=self._acquires,
            released=self._written(frame, lanes),
        )

    def _written(self, frame: Frame, lanes: Lanes) -> Array:
        if not self._releases:
            return np.zeros(len(lanes.where), np.bool_)
        if self._compare is None or self._dst is None:
            return np.ones(len(lanes.where), np.bool_)
        found = self._bits(frame, self._dst, lanes)
        return np.asarray(found == self._bits(frame, self._compare, lanes))

    def _bits(self, frame: Frame, slot: int, lanes: Lanes) -> Array:
        picked = self._lanes.pick(frame.values[slot], frame, lanes.positions)
        return np.ascontiguousarray(picked).view(f"u{self._lanes.site.itemsize}")
