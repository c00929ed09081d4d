"""A load of what other warps of the same program have stored: nothing orders them (ADR-0274).

Triton orders shared memory, not global memory: between ``tl.store`` and ``tl.load`` of the same
bytes by other threads stands no barrier, unless the kernel has one (``tl.debug_barrier``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernbench.commands import Command, DmaRead, DmaWrite, KernelTrace, Math, walk
from kernbench.dtypes import Array
from kernbench.errors import DataRaceError
from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.launch_state import LaunchState

_THREADS = 32
"""Those of a warp; half of a wave."""
_MOST_EACH = 16
"""Elements that a thread has in a row, at most: bytes of a vector."""


_MOST_NOTED = 64
"""Stores of a launch that are held against its loads: the latest."""


class _Stored(NamedTuple):
    param: int
    keys: Array
    """Program and first byte of each lane, rising."""
    lanes: Array
    access: WatchedAccess


class Warps(Check):
    """Checks that what other warps have stored is loaded behind a barrier.

    Of tiles of one axis, whose addresses are no data, and only where no layout that Triton may
    choose gives both lanes to one warp. Whatever threads exchange values by brings a barrier.
    """

    def __init__(self, kernel: WatchedKernel) -> None:
        super().__init__(kernel)
        source = kernel.source
        self._num_warps = source.num_warps if isinstance(source, KernelTrace) else 1
        self._loads: set[Command] = set()
        self._stores: set[Command] = set()
        if isinstance(source, KernelTrace) and self._num_warps > 1:
            for group in source.groups:
                if all(hint.name != "barrier" for hint in group.hints):
                    self._look_at(walk(group.body))

    def _look_at(self, commands: Any) -> None:
        stored: dict[int, list[Command]] = {}
        for command in commands:
            if isinstance(command, DmaWrite) and self._has_warps(command.dest.shape):
                stored.setdefault(command.dest.param, []).append(command)
            elif isinstance(command, DmaRead):
                access = command.source
                if access.param in stored and self._has_warps(access.shape):
                    self._loads.add(command)
                    self._stores.update(stored[access.param])
            elif not isinstance(command, (DmaWrite, Math)):
                stored.clear()

    def _has_warps(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 1 and shape[0] >= self._num_warps * _THREADS

    def begin(self, launch: LaunchState) -> list[_Stored]:
        return []

    def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        if not access.is_known:
            return []
        if access.command in self._stores:
            return [lambda frame: self._note(frame, access)]
        if access.command in self._loads:
            return [lambda frame: self._compare(frame, access)]
        return []

    def _note(self, frame: Frame, access: WatchedAccess) -> None:
        keys, lanes = _keys(frame, access)
        order = np.argsort(keys, kind="stable")
        noted: list[_Stored] = frame.state.notes[Warps]
        noted.append(_Stored(access.site.param, keys[order], lanes[order], access))
        del noted[:-_MOST_NOTED]

    def _compare(self, frame: Frame, access: WatchedAccess) -> None:
        keys, lanes = _keys(frame, access)
        where, positions, _ = access.find(frame)
        for stored in reversed(frame.state.notes[Warps]):
            if stored.param != access.site.param or not len(stored.keys):
                continue
            at = np.minimum(np.searchsorted(stored.keys, keys), len(stored.keys) - 1)
            same = stored.keys[at] == keys
            theirs = stored.lanes[at]
            sizes = access.site.access.shape[0], stored.access.site.access.shape[0]
            apart = same & _apart(lanes, sizes[0], theirs, sizes[1], self._num_warps)
            if apart.any():
                first = int(np.argmax(apart))
                place = access.element(frame, int(where[first]))
                raise DataRaceError(
                    f"{access.here(frame, int(positions[first]))} reads {place} by lane "
                    f"{lanes[first]}, which lane {theirs[first]} of the same program has written "
                    f"in {stored.access.name}, in another of its {self._num_warps} warps; warps "
                    "run in no order: put tl.debug_barrier() between the two, or keep the value"
                )
            # What was stored later stands in memory.
            keys, lanes, where, positions = (
                item[~same] for item in (keys, lanes, where, positions)
            )


def _keys(frame: Frame, access: WatchedAccess) -> tuple[Array, Array]:
    triple = access.find(frame)
    size = len(frame.memory[access.site.param]) + 1
    keys = triple.programs.astype(np.int64) * size + triple.where
    return keys, triple.positions % access.site.access.shape[0]


def _apart(mine: Array, size: int, theirs: Array, other_size: int, num_warps: int) -> Array:
    """Return where lanes of two tiles are in different warps, whatever a thread has in a row."""
    result: Array = np.ones(len(mine), np.bool_)
    for one in _warps(mine, size, num_warps):
        for other in _warps(theirs, other_size, num_warps):
            result &= one != other
    return result


def _warps(lanes: Array, size: int, num_warps: int) -> list[Array]:
    most = min(size // (_THREADS * num_warps), _MOST_EACH)
    return [lanes // (_THREADS << k) % num_warps for k in range(most.bit_length())]
