"""Runs launches under the sanitizer, with plans that contain its checks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from kernbench.checks import Checks
from kernbench.commands import DmaRead, KernelTrace, Transfer, access_of, by_path
from kernbench.dtypes import Array
from kernbench.kernel_ir import ABSOLUTE, Module
from kernbench.memory import Buffer
from kernbench.replay import (
    Frame,
    GroupPlan,
    OutsideReads,
    Plan,
    PointerArg,
    Step,
    composite_groups,
    iterations_as_programs,
    run_kernel,
)
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.facts.launch import Launched, Places
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.launch_state import Findings, LaunchState
from kernbench.sanitizer.ordering.ordered_map import OrderedMap
from kernbench.sanitizer.ordering.segments import Segments
from kernbench.sanitizer.registry import selected
from kernbench.sanitizer.watch import LiveWatch, SanitizerWatch


@dataclass
class Writers:
    """The stores and atomics of a run's launches, as executed: who wrote a byte last, and where."""

    _stores: list[tuple[Array, int, str]] = field(default_factory=list)
    """Addresses of first bytes, bytes of an element, and whose store it is."""

    def last(self, address: int) -> str:
        """Return who wrote the byte at an address last; empty if no launch did."""
        for where, itemsize, who in reversed(self._stores):
            if bool(((where <= address) & (address < where + itemsize)).any()):
                return str(who)
        return ""

    def kind(self) -> type[Check]:
        """Return the check that keeps them."""
        stores = self._stores

        class KeptStores(Check):
            """Keeps where each program stores."""

            def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
                if access.stored is None and not access.site.atomic:
                    return []

                def step(frame: Frame) -> None:
                    lanes = access.find(frame)
                    base = access.buffer(frame).bytes.ctypes.data
                    for program in np.unique(lanes.programs):
                        mine = lanes.programs == program
                        position = int(lanes.positions[np.argmax(mine)])
                        where = base + lanes.where[mine]
                        who = f"program {access.program(frame, position)} in {access.name}"
                        stores.append((where, access.site.itemsize, who))

                return [step]

        return KeptStores


Kinds = tuple[type[Check], ...]

# A memo, not state: a function of the trace and the checks alone, freed with the trace.
_PLANS: weakref.WeakKeyDictionary[KernelTrace, dict[Kinds, _Checked]] = weakref.WeakKeyDictionary()


class _Checked:
    """A trace's plan with the sanitizer's steps in it."""

    def __init__(self, trace: KernelTrace, kinds: Kinds) -> None:
        self.watch = SanitizerWatch(WatchedKernel(trace), kinds)
        self.plan = Plan(trace, composite=False, watch=self.watch)
        self.written = {
            access_of(command).param
            for command in trace.commands()
            if isinstance(command, Transfer) and not isinstance(command, DmaRead)
        } - {ABSOLUTE}
        """The parameters that the launch writes through."""
        groups = iterations_as_programs(trace.groups) or trace.groups
        self.is_composite = any(composite_groups(group) != [group] for group in groups)
        """Whether the plan without checks merges programs, so that sums have another order."""


class Sanitizer:
    """Executes launches with every check; one object per run.

    Each check warns once. ``outside`` is notified of loads outside of a tensor if they are
    allowed.
    """

    def __init__(self, checks: Checks, outside: OutsideReads | None = None) -> None:
        self._checks = checks
        self._kinds = selected(checks)
        self._evaluated = [kind.evaluated for kind in self._kinds if "evaluated" in kind.overridden]
        self._planned = [kind.planned for kind in self._kinds if "planned" in kind.overridden]
        self._outside = outside
        self._findings = Findings()
        self._segments = Segments()
        self._places = Places()

    @contextmanager
    def keeping_writers(self) -> Iterator[Writers]:
        """Give who writes what inside of the block: it fills as launches are executed."""
        writers, kinds = Writers(), self._kinds
        self._kinds = (*kinds, writers.kind())
        try:
            yield writers
        finally:
            self._kinds = kinds

    def check_launch(self, trace: KernelTrace, launched: Launched) -> None:
        """Refuse a launch that is wrong whatever its data.

        Raises:
            AddressOverflowError: An offset of 32 bits wraps around.
            WrongHintError: What the kernel says of a known value does not hold.
        """
        for evaluated in self._evaluated:
            evaluated(trace.overflows, launched)
        for planned in self._planned:
            planned(trace, launched)

    def run(
        self,
        trace: KernelTrace,
        params: Sequence[PointerArg | float | int | None],
        launched: Launched,
    ) -> None:
        """Execute a trace as :func:`kernbench.replay.run_kernel` does, to the same bits.

        Raises:
            OutOfBoundsError, UninitializedReadError, DataRaceError, UndefinedValueError,
            AddressOverflowError, NonFiniteError: What the kernel does wrong, with its line.
        """
        plans = _PLANS.setdefault(trace, {})
        checked = plans.get(self._kinds)
        if checked is None:
            checked = plans[self._kinds] = _Checked(by_path(trace), self._kinds)
        pointers = checked.plan.pointers(params)
        # A product of merged programs sums in another order. So that a check never changes a
        # number, the checked execution is undone there and the usual one follows.
        undo = []
        if checked.is_composite:
            buffers = {id(b): b for b in (pointers[p].buffer for p in checked.written)}
            undo = [(buffer, buffer.bytes.copy()) for buffer in buffers.values()]
        frame = Frame.on(pointers)
        frame.outside = self._outside
        state = frame.state = self._state(launched, trace.grid, params, Segments())
        state.pointers = pointers
        checked.watch.begin_launch(state)
        try:
            checked.plan.run_frame(frame, params)
        except BaseException:
            # It was left with what an access has found.
            del plans[self._kinds]
            raise
        if checked.is_composite:
            for buffer, before in undo:
                np.copyto(buffer.bytes, before)
            run_kernel(trace, params, self._outside)
        checked.watch.end_launch(state)

    def share(self, buffer: Buffer) -> None:
        """Prepare for a fresh buffer that kernels of several SIPs reach."""
        buffer.touches = OrderedMap(buffer.size_bytes, self._segments, self._places)

    def watch(
        self,
        module: Module,
        grid: tuple[int, int, int],
        params: Sequence[PointerArg | float | int | None],
        launched: Launched,
        begun: Clock | None = None,
    ) -> LiveWatch:
        """Return the checks of a launch that decides by data.

        One that synchronizes with other launches has ``begun`` before all that it follows is known.
        """
        segments, places = Segments(), Places()
        if begun is not None:
            segments, places = self._segments, self._places
        state = self._state(launched, grid, params, segments)
        state.begun = begun
        return LiveWatch(WatchedKernel(module, places=places), self._kinds, state)

    def _state(
        self,
        launched: Launched,
        grid: tuple[int, int, int],
        params: Sequence[PointerArg | float | int | None],
        segments: Segments,
    ) -> LaunchState:
        return LaunchState(launched, grid, params, self._checks, self._findings, segments)
