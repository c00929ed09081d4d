"""Races of a launch with other operations: launches, copies and collectives unordered with it.

``record_touch`` of :mod:`kernbench.sanitizer.ordering.touches` detects and reports them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kernbench.commands import KernelTrace
from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.ordering.ordered_map import OrderedMap
from kernbench.sanitizer.ordering.touches import SeenTouches, TraceTouches, is_known


class OperationRaces(Check):
    """Records the bytes that each launch touches: known from phase 1, or collected as it runs."""

    def __init__(self, kernel: WatchedKernel) -> None:
        super().__init__(kernel)
        source = kernel.source
        self._known = TraceTouches(source) if isinstance(source, KernelTrace) else None

    def begin(self, launch: LaunchState) -> Any:
        return SeenTouches()

    def before(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        if self._known is not None and is_known(access.command):
            return []
        return [partial(_collect, access)]

    def end(self, launch: LaunchState) -> None:
        clock, who = launch.launched.clock, launch.launched.who
        if clock is None:
            return
        if self._known is not None:
            self._known.record(launch.pointers, clock, who)
        launch.notes[OperationRaces].record(launch.pointers, clock, who)


def _collect(access: WatchedAccess, frame: Frame) -> None:
    buffer = access.buffer(frame)
    # Such a map knows of each access as it happens.
    if not isinstance(buffer.touches, OrderedMap):
        state: LaunchState = frame.state
        where = access.find(frame).where
        state.notes[OperationRaces].add(access.command, access.name, where, buffer)
