"""Runs launches under the sanitizer: what a run keeps, and the plans of its traces."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from kernbench.checks import Allowed, Checks
from kernbench.commands import KernelTrace, by_path
from kernbench.errors import (
    AddressOverflowError,
    ConversionWarning,
    NonFiniteError,
    NonFiniteWarning,
)
from kernbench.kernel_ir import Module
from kernbench.memory import Buffer
from kernbench.replay import (
    Frame,
    OutsideReads,
    Plan,
    PointerArg,
    composite_groups,
    iterations_as_programs,
    run_kernel,
)
from kernbench.sanitizer.facts.launch import Launched, LaunchState
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.facts.places import Places
from kernbench.sanitizer.live_watch import LiveWatch
from kernbench.sanitizer.ordering.ordered_map import OrderedMap
from kernbench.sanitizer.ordering.programs import ProgramOrder
from kernbench.sanitizer.ordering.segments import Segments
from kernbench.sanitizer.ordering.trace_touches import SeenTouches, TraceTouches
from kernbench.sanitizer.trace_watch import TraceWatch

# A memo, not state: a function of the trace alone that dies with it.
_PLANS: weakref.WeakKeyDictionary[KernelTrace, dict[bool, _Checked]] = weakref.WeakKeyDictionary()
"""By whether masked-off lanes are zeros."""


class _Checked:
    """A trace's plan with the sanitizer's steps in it."""

    def __init__(self, trace: KernelTrace, *, masked_is_zero: bool) -> None:
        self.watch = TraceWatch(trace, masked_is_zero=masked_is_zero)
        self.plan = Plan(trace, composite=False, watch=self.watch)
        self.touches = TraceTouches(trace)
        groups = iterations_as_programs(trace.groups) or trace.groups
        self.is_composite = any(composite_groups(group) != [group] for group in groups)
        """Whether the plan without checks merges programs, so that sums have another order."""


class Sanitizer:
    """Executes launches with every check; one per run.

    NaN and Inf that first appear are reported once. ``outside`` hears of loads outside of a tensor
    where they are allowed.
    """

    def __init__(self, checks: Checks, outside: OutsideReads | None = None) -> None:
        self._non_finite_is_error = checks.nan_is_error
        self._masked_is_zero = Allowed.MASKED_LANES in checks.allowed
        self._outside = outside
        self._has_reported = False
        self._has_reported_conversion = False
        self._segments = Segments()
        self._places = Places()

    def check_launch(self, trace: KernelTrace, launched: Launched) -> None:
        """Refuse what is wrong with a launch whatever its data.

        Raises:
            AddressOverflowError: An offset of 32 bits wraps around.
        """
        if trace.overflows:
            raise AddressOverflowError(f"{trace.overflows[0]} ({launched})")

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
        masked_is_zero = self._masked_is_zero
        checked = plans.get(masked_is_zero)
        if checked is None:
            checked = _Checked(by_path(trace), masked_is_zero=masked_is_zero)
            plans[masked_is_zero] = checked
        pointers = checked.plan.pointers(params)
        # A product of merged programs sums in another order. So that a check never changes a
        # number, the checked execution is undone there and the usual one follows.
        undo = []
        if checked.is_composite:
            buffers = {id(b): b for b in (pointers[p].buffer for p in checked.watch.written)}
            undo = [(buffer, buffer.bytes.copy()) for buffer in buffers.values()]
        frame = Frame.on(pointers)
        frame.outside = self._outside
        wants_non_finite = not self._has_reported and all(
            not isinstance(param, float) or math.isfinite(param) for param in params
        )
        seen = SeenTouches()
        segments = Segments()
        maps = checked.watch.touched(pointers, trace.grid, segments)
        frame.state = LaunchState(
            launched,
            lambda buffer: maps.get(id(buffer)),
            seen,
            self._report_non_finite if wants_non_finite else None,
            ProgramOrder(segments, trace.grid, launched.clock, launched.who)
            if checked.watch.orders_itself
            else None,
            on_conversion=self._on_conversion(),
        )
        checked.plan.run_frame(frame, params)
        if checked.is_composite:
            for buffer, before in undo:
                np.copyto(buffer.bytes, before)
            run_kernel(trace, params, self._outside)
        if launched.clock is not None:
            checked.touches.record(pointers, seen, launched.clock, launched.who)

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

        One that talks to other launches has ``begun`` before all that it follows is known.
        """
        report = None if self._has_reported else self._report_non_finite
        segments, places = Segments(), Places()
        if begun is not None:
            segments, places = self._segments, self._places
        order = ProgramOrder(segments, grid, launched.clock, launched.who, begun)
        masked_is_zero = self._masked_is_zero
        found = LiveWatch(
            module, params, launched, report, order, places, masked_is_zero=masked_is_zero
        )
        found.state.on_conversion = self._on_conversion()
        return found

    def _on_conversion(self) -> Callable[[str], None] | None:
        return None if self._has_reported_conversion else self._report_conversion

    def _report_conversion(self, text: str) -> None:
        self._has_reported_conversion = True
        warnings.warn(f"{text} (said once per run)", ConversionWarning, stacklevel=2)

    def _report_non_finite(self, text: str) -> None:
        self._has_reported = True
        if self._non_finite_is_error:
            raise NonFiniteError(text)
        warnings.warn(f"{text} (said once per run)", NonFiniteWarning, stacklevel=2)


def build_sanitizer(checks: Checks, outside: OutsideReads | None = None) -> Sanitizer | None:
    """Return what executes the launches of a run that is checked, None for any other."""
    return Sanitizer(checks, outside) if checks.enabled else None
