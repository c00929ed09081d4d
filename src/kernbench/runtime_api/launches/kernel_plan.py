"""What launches of one kernel with the same grid and integers share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kernbench.commands import Assert, Atomic, DmaWrite, Gemm, KernelTrace, Print, access_of
from kernbench.errors import NeedsDataError, UsageError, nearest
from kernbench.kernel_ir import makes_pointers
from kernbench.kernel_time import Tables, gathered_params, kernel_operands
from kernbench.logs import logger
from kernbench.runtime_api.launches.kept_plans import trace_bytes
from kernbench.runtime_api.launches.live_launch import LivePlan
from kernbench.runtime_api.launches.tables import tables_of

if TYPE_CHECKING:
    from fractions import Fraction

    from kernbench.op_log import Template
    from kernbench.runtime_api.launches.kernel_engine import (
        Arguments,
        CachedShares,
        Grid,
        KernelEngine,
    )
    from kernbench.triton_backend import KernelBinary

_LOG = logger("plan")
_SEGMENT_BYTES = 4
"""What is kept of each program."""


class KernelPlan:
    """A trace, the bytes it touches, and its schedules so far."""

    def __init__(
        self,
        engine: KernelEngine,
        kernel: KernelEntry,
        trace: KernelTrace,
        grid: Grid,
        ints: Mapping[int, int],
    ) -> None:
        self.kernel = kernel
        self.trace = trace
        self.grid, self.ints = grid, ints
        self.templates: dict[Any, Template] = {}
        """The template for each state of the machine; the launcher makes the keys."""
        self.timings: dict[Any, Any] = {}
        """What a launcher that schedules operations makes of them."""
        self.size_bytes = trace_bytes(trace)
        """About what the trace and the schedules take in memory."""
        self.is_used = False
        """Whether a launch has used it since plans were last evicted."""
        self.operands = kernel_operands(trace)
        touched = {footprint.param: footprint for footprint in engine.footprints(trace)}
        writes = {
            access_of(command).param
            for command in trace.commands()
            if isinstance(command, DmaWrite | Atomic)
        }
        self.has_products = any(isinstance(command, Gemm) for command in trace.commands())
        """Whether matrix engines work for it."""
        self.speaks = any(isinstance(command, Print | Assert) for command in trace.commands())
        """Whether it prints or asserts, so that it is executed even if its data is never read."""
        # A store through an address made from an integer may go anywhere.
        anywhere = -1 in writes
        self.pointers: tuple[tuple[int, int, int, bool], ...] = tuple(
            (
                index,
                touched[index].low if index in touched else 0,
                touched[index].high if index in touched else 0,
                index in writes or anywhere,
            )
            for index in kernel.pointer_params
        )
        """Index, lowest byte, byte after the highest, and whether it is written, per pointer."""
        self.alignments = trace.alignments
        """What descriptors demand of the addresses of arguments."""
        self.gathered = gathered_params(trace)
        """The pointers whose tensors' sizes decide the time."""
        self.has_atomics = any(isinstance(command, Atomic) for command in trace.commands())

    def tables(self, params: Sequence[Any]) -> Tables:
        """Return the sizes of the tensors that a launch accesses through loaded indices."""
        return tables_of(self.gathered, params) if self.gathered else ()

    def release(self) -> int:
        """Let go of what programs do, and return how many bytes of memory are free by that.

        The schedules of a large grid are found from a number for each program; what they are made
        of is a hundred bytes and more.
        """
        before = self.size_bytes
        self.trace.release()
        self.size_bytes = min(before, _SEGMENT_BYTES * self.trace.num_programs)
        return before - self.size_bytes

    def keep(self, key: Any, template: Template) -> None:
        """Keep a schedule for a state of the machine."""
        self.templates[key] = template
        self.size_bytes += template.size_bytes

    @cached_property
    def arguments(self) -> Arguments:
        """Its integers and constants, by parameter name."""
        return self.kernel.arguments(self.ints)

    @cached_property
    def live(self) -> LivePlan:
        """The same launch, run on data as time passes."""
        return LivePlan(self.kernel, self.grid, self.ints, None)


class KernelEntry:
    """A compiled kernel as the launcher knows it: its parameters, and the plans made so far."""

    def __init__(self, binary: KernelBinary) -> None:
        params = binary.module.kernel.params
        self.binary = binary
        self.name = binary.name
        self.param_names = tuple(param.name for param in params)
        self.pointer_params = tuple(p.index for p in params if p.is_pointer)
        self.int_params = tuple(
            p.index
            for p in params
            if not p.is_pointer and not (p.dtype is not None and p.dtype.is_floating_point)
        )
        self.pick_ints: Callable[[tuple[Any, ...]], Any] = (
            operator.itemgetter(*self.int_params) if self.int_params else lambda args: ()
        )
        self.plans: dict[Any, KernelPlan | LivePlan] = {}
        self.makes_pointers = makes_pointers(binary.module)
        """Whether it may access addresses that it has loaded or computed."""

    def param_index(self, name: str) -> int:
        """Return the index of a parameter.

        Raises:
            UsageError: There is none of that name.
        """
        if name not in self.param_names:
            raise UsageError(
                f"kernel {self.name} has no parameter {name}: {nearest(name, self.param_names)}"
            )
        return self.param_names.index(name)

    def arguments(self, ints: Mapping[int, int]) -> Arguments:
        """Return constants, and integers by index, by the names of their parameters."""
        named = {self.param_names[index]: value for index, value in ints.items()}
        return {**dict(self.binary.constants), **named}

    def with_kept(
        self, cached: CachedShares, kept: tuple[tuple[str, Fraction], ...]
    ) -> CachedShares:
        """Return the cached share of each parameter, at least what is given for those named.

        Raises:
            UsageError: The kernel has no such parameter.
        """
        shares = dict(cached)
        for name, share in kept:
            index = self.param_index(name)
            shares[index] = max(shares.get(index, share), share)
        return tuple(sorted(shares.items()))

    def build_plan(
        self, engine: KernelEngine, grid: Grid, args: tuple[Any, ...]
    ) -> KernelPlan | LivePlan:
        """Return a new plan for a grid and arguments."""
        return self.plan_of(engine, grid, self._ints(args))

    def plan_of(
        self, engine: KernelEngine, grid: Grid, ints: Mapping[int, int]
    ) -> KernelPlan | LivePlan:
        """Return a new plan for a grid and integers by parameter."""
        begun_s = perf_counter()
        try:
            trace = engine.evaluate(self.binary, grid, ints)
        except NeedsDataError as reason:
            _LOG.debug("%s on grid %s decides by data: %s", self.name, grid, reason)
            # A traceback would keep every tensor of the launch alive as long as the kernel.
            return LivePlan(self, grid, ints, reason.with_traceback(None))
        plan = KernelPlan(engine, self, trace, grid, ints)
        _LOG.debug("%s on grid %s: planned in %.3f s", self.name, grid, perf_counter() - begun_s)
        return plan

    def _ints(self, args: tuple[Any, ...]) -> Mapping[int, int]:
        ints = {}
        for index in self.int_params:
            try:
                ints[index] = operator.index(args[index])
            except TypeError:
                raise UsageError(
                    f"argument {self.param_names[index]} of kernel {self.name} must be an "
                    f"integer, but got {args[index]!r}"
                ) from None
        return ints
