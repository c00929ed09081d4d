"""A compiled trace: everything about a launch that does not depend on data, computed once."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernbench.commands import Atomic, DmaRead, DmaWrite, KernelTrace, access_of, by_path
from kernbench.dtypes import Array
from kernbench.errors import UsageError
from kernbench.replay.plans.composite import composite_groups
from kernbench.replay.plans.group_plan import GroupPlan, Watch
from kernbench.replay.plans.persistent import iterations_as_programs, stored_params
from kernbench.replay.steps.access import StoreResult, TileLoad
from kernbench.replay.steps.diagnostics import show_printed
from kernbench.replay.steps.frame import Frame, PointerArg
from kernbench.replay.steps.geometry import Box
from kernbench.replay.steps.lifetimes import only_stored, stored_ranges
from kernbench.replay.steps.outside import OutsideReads
from kernbench.replay.steps.sites import AccessSite
from kernbench.replay.steps.step import Freeing


class _View(NamedTuple):
    """Where in the memory of a parameter a box lies, relative to its pointer."""

    param: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    strides: tuple[int, ...]


class Straight:
    """A plan of loads, an operation and its store; :meth:`run` does what its steps would do."""

    def __init__(
        self,
        loads: Sequence[_View],
        store: _View,
        inputs: tuple[int, ...],
        step: StoreResult,
        overwritten: tuple[int, int] | None,
    ) -> None:
        self._loads = tuple(loads)
        self._store = store
        self._inputs = inputs
        self._into = step.into
        self._overwritten = overwritten
        """The range of bytes that are all stored, relative to the pointer; None: not known."""

    @classmethod
    def of(
        cls, groups: Sequence[GroupPlan], stored: dict[int, tuple[int, int]], params: Sequence[int]
    ) -> Straight | None:
        """Return the short way of a plan with these groups, None if its steps are others.

        ``stored`` are the ranges of bytes of parameters that are stored as wholes and not read;
        ``params`` the parameters that the plan accesses.
        """
        if len(groups) != 1 or not groups[0].is_simple:
            return None
        group = groups[0]
        steps = [step for step in group.steps if not isinstance(step, Freeing)]
        if not steps or not isinstance(steps[-1], StoreResult):
            return None
        last, frame = steps[-1], Frame({}, {}, {})
        frame.num_programs = group.chunks.bounds[1]
        slots: dict[int, int] = {}
        loads: list[_View] = []
        for step in steps[:-1]:
            if not isinstance(step, TileLoad) or step.dynamic or step.data_mask is not None:
                return None
            view = _view(step.site, frame)
            if view is None:
                return None
            slots[step.slot] = len(loads)
            loads.append(view)
        store = None if last.store.dynamic else _view(last.store.site, frame)
        if store is None or {view.param for view in (*loads, store)} != set(params):
            return None
        if not set(last.inputs) <= slots.keys():
            return None
        inputs = tuple(slots[slot] for slot in last.inputs)
        # What several programs store in one place is not computed there.
        if last.store.site.geometry(frame).lead == 1 and any(
            loads[number].shape[0] != 1 for number in inputs
        ):
            return None
        return cls(loads, store, inputs, last, stored.get(store.param))

    def run(self, params: Sequence[PointerArg | float | int | None]) -> bool:
        """Execute the launch; return False, with nothing done, where its steps have to."""
        param, shape, dtype, offset, strides = self._store
        argument = params[param]
        if type(argument) is not PointerArg:
            return False
        target, origin = argument
        arrays = []
        try:
            for load in self._loads:
                argument = params[load[0]]
                if type(argument) is not PointerArg or argument[0] is target:
                    return False
                view: Array = np.ndarray(
                    load[1], load[2], argument[0].bytes, argument[1] + load[3], load[4]
                )
                arrays.append(view)
            if target.is_unwritten and self._overwritten == (-origin, target.size_bytes - origin):
                memory = target.bytes_to_overwrite()
            else:
                memory = target.bytes
            out: Array = np.ndarray(shape, dtype, memory, origin + offset, strides)
        except (ValueError, TypeError):
            # Outside of a tensor: the steps say where, or take zeros.
            return False
        with np.errstate(all="ignore"):
            self._into(*[arrays[number] for number in self._inputs], out=out)
        return True


def _view(site: AccessSite, frame: Frame) -> _View | None:
    """Return the one box that an access outside of loops touches, None if it is not one."""
    box = site.geometry(frame).whole
    if not isinstance(box, Box) or site.param < 0:
        return None
    return _View(site.param, box.view_shape, site.dtype, box.offset, box.view_strides)


class Plan:
    """A compiled trace. It holds no data and no address, and does not keep the trace alive."""

    def __init__(
        self, trace: KernelTrace, *, composite: bool = True, watch: Watch | None = None
    ) -> None:
        trace = by_path(trace)
        self.name = trace.name
        self.pointer_params = _touched(trace)
        groups = trace.groups
        spread = iterations_as_programs(groups) if composite else None
        self._stored_apart = stored_params(groups) if spread else frozenset[int]()
        self._in_order: Callable[[], Plan] | None = None
        if spread:
            # Without the trace: plans are kept by trace, and must not keep it alive.
            other = dataclasses.replace(trace)
            self._in_order = functools.cache(lambda: Plan(other, composite=False))
            groups = spread
        if composite:
            groups = tuple(part for group in groups for part in composite_groups(group))
        self.groups = [GroupPlan(group, trace, watch, merges=composite) for group in groups]
        self._only_stored = frozenset[int]() if watch is not None else only_stored(trace)
        self._stored: dict[int, tuple[int, int]] | None = None
        self._straight: Straight | None = None
        if composite and watch is None and not spread:
            self._straight = Straight.of(self.groups, self._ranges_stored(), self.pointer_params)

    def run(
        self, params: Sequence[PointerArg | float | int | None], outside: OutsideReads | None = None
    ) -> None:
        """Execute the kernel on the buffers that ``params`` point into.

        With ``outside``, loads outside of them are reported to it instead of raised.
        """
        if self._straight is not None and self._straight.run(params):
            return
        pointers = self.pointers(params)
        if self._in_order is not None and self._meets_itself(pointers):
            self._in_order().run(params, outside)
            return
        memory: dict[int, Array] = {}
        origin: dict[int, int] = {}
        for index, argument in pointers.items():
            buffer, origin[index] = argument
            if buffer.is_unwritten and self._overwrites(index, argument, params):
                memory[index] = buffer.bytes_to_overwrite()
            else:
                memory[index] = buffer.bytes
        frame = Frame(pointers, memory, origin)
        frame.outside = outside
        self.run_frame(frame, params)

    def pointers(self, params: Sequence[PointerArg | float | int | None]) -> dict[int, PointerArg]:
        """Return the pointers that the kernel reads or writes through, by parameter index.

        Raises:
            UsageError: One of them is not a pointer.
        """
        pointers: dict[int, PointerArg] = {}
        for index in self.pointer_params:
            argument = params[index] if index < len(params) else None
            if not isinstance(argument, PointerArg):
                raise UsageError(
                    f"kernel {self.name} reads or writes through parameter {index}, which must be "
                    f"a tensor, but got {argument!r}"
                )
            pointers[index] = argument
        return pointers

    def run_frame(self, frame: Frame, params: Sequence[PointerArg | float | int | None]) -> None:
        """Execute the kernel in a frame of :meth:`Frame.on`."""
        try:
            with np.errstate(all="ignore"):
                for group in self.groups:
                    group.run(frame, params)
        finally:
            show_printed(frame)

    def _meets_itself(self, pointers: dict[int, PointerArg]) -> bool:
        """Return whether a stored buffer is also the buffer of another parameter."""
        buffers = Counter(id(pointer.buffer) for pointer in pointers.values())
        return any(buffers[id(pointers[param].buffer)] > 1 for param in self._stored_apart)

    def _overwrites(self, param: int, argument: PointerArg, params: Sequence[Any]) -> bool:
        """Return whether the kernel stores every byte of a buffer, and reads none."""
        if param not in self._only_stored:
            return False
        buffer, offset = argument
        if self._ranges_stored().get(param) != (-offset, buffer.size_bytes - offset):
            return False
        others = (params[index] for index in self.pointer_params if index != param)
        return all(isinstance(other, PointerArg) and other.buffer is not buffer for other in others)

    def _ranges_stored(self) -> dict[int, tuple[int, int]]:
        """Return the bytes of parameters that the kernel stores for certain, by parameter."""
        if self._stored is None:
            self._stored = stored_ranges(
                (store, group.chunks) for group in self.groups for store in group.stores()
            )
        return self._stored


def _touched(trace: KernelTrace) -> tuple[int, ...]:
    """Return the pointer parameters that some command accesses."""
    touched = set[int]()
    for command in trace.commands():
        if isinstance(command, DmaRead | DmaWrite | Atomic):
            touched.add(access_of(command).param)
    # An absolute address (-1) is refused where it is used.
    return tuple(sorted(touched - {-1}))
