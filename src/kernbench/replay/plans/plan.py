"""A compiled trace: everything about a launch that does not depend on data, computed once."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.commands import Atomic, DmaRead, DmaWrite, KernelTrace, access_of, by_path
from kernbench.dtypes import Array
from kernbench.errors import UsageError
from kernbench.replay.plans.composite import composite_groups
from kernbench.replay.plans.group_plan import GroupPlan, Watch
from kernbench.replay.plans.persistent import iterations_as_programs, stored_params
from kernbench.replay.plans.straight import Straight
from kernbench.replay.steps.diagnostics import show_printed
from kernbench.replay.steps.frame import Frame, PointerArg
from kernbench.replay.steps.lifetimes import only_stored, stored_ranges
from kernbench.replay.steps.outside import OutsideReads


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
