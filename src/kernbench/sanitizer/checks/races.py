"""Races among programs of a launch: two access a byte, one writes it, and nothing orders them.

Atomics race with plain accesses only, unless their scope leaves out the other program; they order
programs that read what they find (ADR-0232).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kernbench.commands import Access, Atomic, DmaRead, KernelTrace, Transfer, access_of
from kernbench.dtypes import Array
from kernbench.errors import DataRaceError
from kernbench.kernel_ir import ABSOLUTE, Module, written_params
from kernbench.memory import Buffer
from kernbench.replay import Frame, GroupPlan, PointerArg, Step
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.facts.lanes import Lanes
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.ordering.ordered_map import AccessKind, OrderedMap, Touched, kind_of_access
from kernbench.sanitizer.ordering.programs import ProgramOrder

Maps = Callable[[Buffer], Touched | OrderedMap | None]
"""Returns the map of a buffer in which programs may race; None if they cannot."""


class Races(Check):
    """Keeps a map of accesses by program, for each buffer that a launch writes (ADR-0020 D3)."""

    def __init__(self, kernel: WatchedKernel) -> None:
        super().__init__(kernel)
        self._written: set[int] = set()
        self._granules: dict[int, int] = {}
        self._orders_itself = isinstance(kernel.source, Module)
        """Whether programs synchronize: some atomic's old value is read."""
        if isinstance(kernel.source, KernelTrace):
            for command in kernel.source.commands():
                if isinstance(command, Transfer):
                    self._note(command)

    def _note(self, command: Transfer) -> None:
        param = access_of(command).param
        if param == ABSOLUTE:
            return
        before = self._granules.get(param, 0)
        self._granules[param] = math.gcd(before, _alignment(access_of(command)))
        if not isinstance(command, DmaRead):
            self._written.add(param)
        if isinstance(command, Atomic) and command.dst is not None:
            self._orders_itself = True

    def begin(self, launch: LaunchState) -> Any:
        if self._orders_itself:
            launched = launch.launched
            launch.order = ProgramOrder(
                launch.segments,
                launch.grid,
                launched.clock,
                launched.who,
                launch.begun,
                launched.rank,
            )
        if isinstance(self.kernel.source, Module):
            return self._maps_by_data(self.kernel.source, launch)
        return self._maps_of_trace(launch)

    def before(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        place = self.kernel.places.number(access.name, access.site.verb)
        return [partial(_look, access, kind_of_access(access.command), place)]

    def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        command = access.command
        if access.is_plain:
            return []
        if isinstance(command, Atomic) and command.compare is not None:
            steps, compare = group.fetch(command.compare)
            return [*steps, Signal(access, command, compare)]
        return [Signal(access, command, None)]

    def end(self, launch: LaunchState) -> None:
        if launch.order is not None:
            launch.order.end()

    def _maps_of_trace(self, launch: LaunchState) -> Maps:
        """Return the maps of the buffers that a launch writes to."""
        pointers, places = launch.pointers, self.kernel.places
        buffers = {id(pointers[p].buffer): pointers[p].buffer for p in self._written}
        if self._orders_itself:
            ordered = {
                key: OrderedMap(buffer.size_bytes, launch.segments, places)
                for key, buffer in buffers.items()
            }
            return lambda buffer: ordered.get(id(buffer))
        granules = dict.fromkeys(buffers, 0)
        for param, granule in self._granules.items():
            argument = pointers[param]
            key = id(argument.buffer)
            if key in granules:
                granules[key] = math.gcd(granules[key], granule, argument.offset_bytes)
        maps = {
            key: Touched(buffer.size_bytes, granules[key], places, launch.grid)
            for key, buffer in buffers.items()
        }
        return lambda buffer: maps.get(id(buffer))

    def _maps_by_data(self, module: Module, launch: LaunchState) -> Maps:
        """Return the maps of buffers that a launch may reach by pointers in memory as well."""
        params = written_params(module)
        written = {
            id(param.buffer)
            for index, param in enumerate(launch.params)
            if isinstance(param, PointerArg) and index in params
        }
        maps: dict[int, OrderedMap] = {}

        def find(buffer: Buffer) -> OrderedMap | None:
            if isinstance(buffer.touches, OrderedMap):
                return buffer.touches
            if ABSOLUTE not in params and id(buffer) not in written:
                return None
            ordered_map = maps.get(id(buffer))
            if ordered_map is None:
                ordered_map = OrderedMap(buffer.size_bytes, launch.segments, self.kernel.places)
                maps[id(buffer)] = ordered_map
            return ordered_map

        return find


def _look(access: WatchedAccess, kind: AccessKind, place: int, frame: Frame) -> None:
    """Record an access in the map of its buffer.

    Raises:
        DataRaceError: An unordered program has accessed a byte, and one of the two writes it.
    """
    state: LaunchState = frame.state
    touched = state.notes[Races](access.buffer(frame))
    if touched is None:
        return
    lanes, itemsize = access.find(frame), access.site.itemsize
    look = partial(touched.look, kind, lanes.where, place=place, itemsize=itemsize)
    result = look(state.actors(lanes.programs, plain=access.is_plain))
    if result is not None and not access.is_plain:
        result = look(state.actors(lanes.programs, plain=True))
    if result is None:
        return
    at, other = result
    here = access.here(frame, int(lanes.positions[at]))
    where = access.element(frame, int(lanes.where[at]))
    if isinstance(access.command, Atomic) and access.command.scope == "cta":
        other += '; with scope="cta" an atomic is one for the threads of its own program alone'
    raise DataRaceError(f"{here} {access.site.verb} {where}, which {other}")


def _alignment(access: Access) -> int:
    """Return a number of bytes that divides the size and every known address of an access."""
    alignment = math.gcd(access.dtype.itemsize, access.offset.const)
    for array in access.offset.terms.values():
        alignment = math.gcd(alignment, int(np.gcd.reduce(array, axis=None)))
    return alignment


class Signal:
    """The step after an atomic or a volatile load: what it acquires and what it releases.

    Orders the program after those whose release it acquires, and releases its own accesses. An old
    value that is not read acquires nothing; a ``cas`` whose comparison failed has written nothing.
    """

    def __init__(self, access: WatchedAccess, command: Transfer, compare: int | None) -> None:
        self._access, self._compare = access, compare
        if isinstance(command, Atomic):
            self._dst = None if command.dst is None else command.dst.slot
            self._acquires = self._dst is not None and command.order in ("acquire", "acq_rel")
            self._releases = command.kind != "load" and command.order in ("release", "acq_rel")
            if command.scope == "cta":
                # No other program hears of it.
                self._acquires = self._releases = False
        else:
            assert isinstance(command, DmaRead)
            self._dst, self._acquires, self._releases = command.dst.slot, True, False

    def __call__(self, frame: Frame) -> None:
        state: LaunchState = frame.state
        if state.order is None or not (self._acquires or self._releases):
            return
        touched = state.notes[Races](self._access.buffer(frame))
        if not isinstance(touched, OrderedMap):
            return
        lanes = self._access.find(frame)
        itemsize = self._access.site.itemsize
        if state.issued is not None:
            # The program continued when it was issued; only its effect is here.
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
        bits = self._bits(frame, self._dst, lanes)
        return np.asarray(bits == self._bits(frame, self._compare, lanes))

    def _bits(self, frame: Frame, slot: int, lanes: Lanes) -> Array:
        picked = self._access.pick(frame.values[slot], frame, lanes.positions)
        return np.ascontiguousarray(picked).view(f"u{self._access.site.itemsize}")
