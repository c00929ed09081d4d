"""The one place where launches call what plans, times and executes kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kernbench.commands import (
    IN_FLOAT32,
    Gemm,
    KernelTrace,
    MaskTile,
    Rounding,
    SourceLine,
    Tf32,
    build_roundings,
)
from kernbench.dtypes import float32
from kernbench.kernel_ir import NO_CUDA, Footprint, OutOfBounds, footprints, out_of_bounds
from kernbench.kernel_time import (
    Conditions,
    Tables,
    ThreadBlock,
    build_waves,
    check_kernel,
    line_of_short_rows,
    resident_programs,
    schedule_kernel,
    schedule_key,
)
from kernbench.replay import GroupPlan, OutsideReads, run_kernel
from kernbench.runtime_api.launches.kept_plans import KeptPlans
from kernbench.runtime_api.launches.kernel_plan import KernelEntry

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.interleaved import Executed, InterleavedLaunch, Resolve
    from kernbench.kernel_time import StrandCosts
    from kernbench.op_log import Template
    from kernbench.policy import DPPolicy
    from kernbench.runtime_api.launches.live_launch import LivePlan
    from kernbench.sanitizer import Launched, LiveWatch, Sanitizer
    from kernbench.triton_backend import KernelBinary

Grid = tuple[int, int, int]
Policies = tuple[tuple[int, "DPPolicy"], ...]
"""The DPPolicies of arguments, by parameter index."""
Arguments = Mapping[str, int | str]
"""Integers and constants that a launch was given, by parameter name."""
CachedShares = tuple[tuple[int, Fraction], ...]
"""What the cache holds of arguments, by parameter index."""

_MOST_NAMED = 8
_MOST_ALIKE = 256
"""The number of schedules of executed launches that are kept, the latest ones."""
_NONE: Arguments = MappingProxyType({})


class KernelEngine:
    """Plans, times and executes kernels on one machine.

    Launches that are equal are planned and scheduled once, in all runs that it serves.
    """

    def __init__(
        self, machine: Machine, tf32: Tf32 = Tf32.ROUND, outside: OutsideReads | None = None
    ) -> None:
        self._machine = machine
        self.tf32 = tf32
        self.outside = outside
        """Collects loads outside of a tensor, which read zeros then; None makes them errors."""
        passes = {name: machine.sip.float32_passes(name)[0] for name in IN_FLOAT32}
        supported = [item for item, name in passes.items() if name != "float32"]
        self._roundings = build_roundings(tf32, supported)
        self._strand_costs: dict[tuple[int, Conditions], StrandCosts] = {}
        self.kept_plans = KeptPlans()
        self._live_steps: dict[Any, GroupPlan] = {}
        """Of commands that live launches executed: those of later ones are mostly equal."""
        self._entries: dict[KernelBinary, KernelEntry] = {}
        self._entries_alike: dict[Hashable, KernelEntry] = {}
        """The same entries, keyed by what decides plans: binaries with equal plans share one."""
        self._executed: WeakSet[KernelTrace] = WeakSet()
        """Traces of launches that decided by data: there is another one after each execution."""
        self._alike: dict[Any, Template] = {}
        """The schedules of those, by what decides them."""
        self.rounded: dict[str, SourceLine] = {}
        """Kernels whose float32 products are not computed in float32, with one such line."""
        self.asks_for_less = False
        """Whether a kernel asked for float32 products in less than float32, whatever it got."""
        self.scattered: dict[str, SourceLine] = {}
        """Kernels whose time assumes that rows selected by data lie apart, with one such line."""

    def entry_of(self, binary: KernelBinary) -> KernelEntry:
        """Return what launches of a kernel share, its plans among it."""
        entry = self._entries.get(binary)
        if entry is None:
            planned_by = binary.planned_by(self._machine.sip.pe.warps is not None)
            entry = self._entries_alike.get(planned_by)
            if entry is None:
                entry = self._entries_alike[planned_by] = KernelEntry(binary)
            self._entries[binary] = entry
        return entry

    def evaluate(self, binary: KernelBinary, grid: Grid, ints: Mapping[int, int]) -> KernelTrace:
        """Return what a launch does, without data; ``ints`` by parameter index."""
        trace = binary.trace(grid, ints, roundings=self._roundings)
        self._note_rounded(trace)
        return trace

    def _note_rounded(self, trace: KernelTrace) -> None:
        for command in trace.commands():
            if not isinstance(command, Gemm):
                continue
            of_float32 = not isinstance(command.a, MaskTile) and command.a.dtype == float32
            self.asks_for_less |= of_float32 and command.precision != "ieee"
            if command.rounding is not Rounding.NONE:
                self.rounded.setdefault(trace.name, command.line)

    def footprints(self, trace: KernelTrace) -> Sequence[Footprint]:
        """Return the byte range that is touched through each pointer parameter."""
        return footprints(trace)

    def out_of_bounds(
        self,
        trace: KernelTrace,
        param: int,
        size_before: int,
        size_after: int,
        *,
        reads: bool = True,
    ) -> OutOfBounds | None:
        """Return the first access outside of the bytes around a pointer, for an error."""
        return out_of_bounds(trace, param, size_before, size_after, reads=reads)

    def remarks(self) -> list[str]:
        """Return lines about what the times of kernels assume, for the end of the report."""
        if not self.scattered:
            return []
        scattered = sorted(self.scattered.items())
        named = ", ".join(f"{name} ({line})" for name, line in scattered[:_MOST_NAMED])
        more = f" and {len(scattered) - _MOST_NAMED} more" if len(scattered) > _MOST_NAMED else ""
        return [f"timed as if short rows that loaded indices name lay far apart: {named}{more}"]

    def check(self, trace: KernelTrace, sip_id: int) -> None:
        """Refuse a kernel that a SIP cannot run.

        Raises:
            MachineError: It cannot.
        """
        check_kernel(trace, self._machine, sip_id)

    def place(self, trace: KernelTrace, sip_id: int, conditions: Conditions) -> None:
        """Find when programs run, for the schedules that are asked for next."""
        build_waves(trace, self._machine.sip_at(sip_id), conditions)

    def schedule(
        self,
        trace: KernelTrace,
        sip_id: int,
        conditions: Conditions,
        name: str,
        arguments: Arguments = _NONE,
    ) -> Template:
        """Return the schedule on a SIP in the state in which the launch finds it.

        ``arguments`` are the launch's, for those who read the log.
        """
        if trace not in self._executed:
            return self._scheduled(trace, sip_id, conditions, name, arguments)
        sip = self._machine.sip_at(sip_id)
        launch = schedule_key(trace, sip.cube.hbm_burst_bytes)
        key = (launch, id(sip), conditions, name, tuple(arguments.items()))
        template = self._alike.pop(key, None)
        if template is None:
            template = self._scheduled(trace, sip_id, conditions, name, arguments)
        if len(self._alike) >= _MOST_ALIKE:
            del self._alike[next(iter(self._alike))]
        # It is the latest one now.
        self._alike[key] = template
        return template

    def _scheduled(
        self,
        trace: KernelTrace,
        sip_id: int,
        conditions: Conditions,
        name: str,
        arguments: Arguments,
    ) -> Template:
        template = schedule_kernel(trace, self._machine, sip_id, conditions)
        if conditions.tables and name not in self.scattered:
            line = line_of_short_rows(trace, self._machine.sip_at(sip_id), conditions)
            if line is not None:
                self.scattered[name] = line
        values = {**template.launched_with, "arguments": dict(arguments)}
        return dataclasses.replace(template, name=name, launched_with=values)

    def conditions(
        self,
        sip_id: int,
        policies: Policies,
        cached: CachedShares = (),
        queued: bool = False,
        tables: Tables = (),
        binary: KernelBinary | None = None,
    ) -> Conditions:
        """Return the state in which a launch with these placements finds a SIP."""
        sip = self._machine.sip_at(sip_id)
        placements = tuple((index, policy.resolve(sip)) for index, policy in policies)
        return Conditions(placements, cached, queued, tables, self._block(binary, sip_id))

    def _block(self, binary: KernelBinary | None, sip_id: int) -> ThreadBlock | None:
        """Return what a program of a kernel is to a SIP's PEs, if these count warps."""
        warps = self._machine.sip_at(sip_id).pe.warps
        if binary is None or warps is None:
            return None
        return binary.thread_block(self._machine.spec.cuda_architecture or NO_CUDA, warps.lanes)

    def strand_costs(self, sip_id: int, conditions: Conditions) -> StrandCosts:
        """Return the costs of commands on a SIP, shared by launches under equal conditions."""
        from kernbench.kernel_time import StrandCosts

        sip = self._machine.sip_at(sip_id)
        # SIPs without a description of their own share one object.
        key = (id(sip), conditions)
        costs = self._strand_costs.get(key)
        if costs is None:
            costs = self._strand_costs[key] = StrandCosts(sip, conditions)
        return costs

    def num_resident(self, binary: KernelBinary, sip_id: int) -> int:
        """Return how many programs of a kernel fit on one PE at a time."""
        sip, tcm = self._machine.sip_at(sip_id), binary.tcm
        block = self._block(binary, sip_id)
        return resident_programs(tcm.total_bytes, tcm.staged_bytes, sip, block)

    def most_resident(self, binary: KernelBinary, sip_id: int) -> int:
        """Return how many programs of a kernel a SIP holds at a time."""
        return self.num_resident(binary, sip_id) * self._machine.sip_at(sip_id).num_pes

    def run_live(
        self,
        plan: LivePlan,
        params: Sequence[Any],
        resolve: Resolve,
        sip_id: int,
        watch: LiveWatch | None = None,
    ) -> Executed:
        """Execute a kernel that decides by data on a SIP; return what it did."""
        most = self.most_resident(plan.kernel.binary, sip_id)
        executed = self._interleaved(plan, params, resolve, watch, most_resident=most).execute()
        if executed.trace.name not in self.rounded:
            self._note_rounded(executed.trace)
        self._executed.add(executed.trace)
        return executed

    def pace(
        self,
        plan: LivePlan,
        params: Sequence[Any],
        resolve: Resolve,
        watch: LiveWatch | None = None,
    ) -> InterleavedLaunch:
        """Return an execution of the kernel on data that resumes as simulated time passes."""
        return self._interleaved(plan, params, resolve, watch, is_paced=True)

    def _interleaved(
        self,
        plan: LivePlan,
        params: Sequence[Any],
        resolve: Resolve,
        watch: LiveWatch | None,
        *,
        is_paced: bool = False,
        most_resident: int | None = None,
    ) -> InterleavedLaunch:
        from kernbench.interleaved import InterleavedLaunch

        binary = plan.kernel.binary
        return InterleavedLaunch(
            binary.module,
            plan.grid,
            plan.ints,
            params,
            resolve,
            num_warps=binary.num_warps,
            num_stages=binary.num_stages,
            roundings=self._roundings,
            watch=watch,
            outside=self.outside,
            is_paced=is_paced,
            most_resident=most_resident,
            plans=self._live_steps,
        )

    def run(self, trace: KernelTrace, params: Sequence[Any]) -> None:
        """Execute the kernel on data."""
        run_kernel(trace, params, self.outside)

    def run_checked(
        self, trace: KernelTrace, params: Sequence[Any], sanitizer: Sanitizer, launched: Launched
    ) -> None:
        """Execute the kernel on data, and raise what the sanitizer finds."""
        sanitizer.run(trace, params, launched)
