"""Launches of kernels that decide by data: a data-dependence barrier (ADR-0031).

What such a kernel does is known only when its data is. So when the launch starts in virtual time,
everything that has completed until then is replayed, the kernel is run on data, and what it did is
scheduled.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kernbench.clock import StreamCommand
from kernbench.errors import NeedsDataError, NoDataError
from kernbench.kernel_ir import ABSOLUTE, written_params
from kernbench.kernel_time import (
    KernelOperand,
    cached_shares,
    gathered_params,
    kernel_operands,
    meet_operands,
)
from kernbench.memory import Buffer
from kernbench.replay import PointerArg
from kernbench.runtime_api.launches.addresses import buffer_at
from kernbench.runtime_api.launches.kept_plans import LIVE_PLAN_BYTES
from kernbench.runtime_api.launches.tables import tables_of
from kernbench.runtime_api.launches.tuned import run_twice
from kernbench.sanitizer import Launched

if TYPE_CHECKING:
    from kernbench.commands import Alignment
    from kernbench.interleaved import Executed
    from kernbench.runtime_api.base.rank_state import RankState
    from kernbench.runtime_api.base.run import Run
    from kernbench.runtime_api.launches.kernel_engine import Arguments, Grid, KernelEngine, Policies
    from kernbench.runtime_api.launches.kernel_plan import KernelEntry


class LivePlan:
    """A kernel, a grid and integers whose trace depends on data."""

    def __init__(
        self,
        kernel: KernelEntry,
        grid: Grid,
        ints: Mapping[int, int],
        reason: NeedsDataError | None,
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.ints = ints
        self.reason = reason
        """Why its trace needs data; None if it does not, but others observe what it does."""
        self.size_bytes = LIVE_PLAN_BYTES
        self.is_used = False
        """As of ``KernelPlan``."""
        written = written_params(kernel.binary.module)
        self.writes_anywhere = ABSOLUTE in written
        self.pointers: tuple[tuple[int, int, int, bool], ...] = tuple(
            (index, 0, 0, index in written or self.writes_anywhere)
            for index in kernel.pointer_params
        )
        """As ``KernelPlan.pointers``; which bytes are touched is not known."""
        self.alignments: tuple[Alignment, ...] = ()
        """As ``KernelPlan.alignments``; strands know the addresses, and check them."""

    @property
    def arguments(self) -> Arguments:
        """The same as ``KernelPlan.arguments``."""
        return self.kernel.arguments(self.ints)

    def no_data_error(self, reason: NeedsDataError | None = None) -> NoDataError:
        """Return the error of a launch without data: the operation and the line that need it."""
        reason = reason or self.reason
        error = NoDataError(
            f"{reason}; but this run has none (data=False, --no-data): run it with data, "
            "or guard the launch with `if torch.has_data:`"
        )
        error.__cause__ = reason
        return error


class Reach:
    """The buffers that a launch can reach through addresses in memory."""

    def __init__(self, run: Run, plan: LivePlan, state: RankState, params: list[Any]) -> None:
        self._run = run
        self.sip_id = state.sip_id
        self.written: list[Buffer] = []
        if plan.writes_anywhere:
            # What the program frees before the launch starts is still there for it.
            self.written = run.devices.memory(state.sip_id).live()
        buffers = [param.buffer for param in params if isinstance(param, PointerArg)]
        known = [*self.written, *buffers]
        self._buffers = {buffer.address: buffer for buffer in known}
        self._starts = sorted(self._buffers)

    def __call__(self, address: int) -> Buffer:
        position = bisect_right(self._starts, address) - 1
        if position >= 0:
            buffer = self._buffers[self._starts[position]]
            if address < buffer.end:
                return buffer
        buffer = buffer_at(self._run, address, self.sip_id)
        insort(self._starts, buffer.address)
        self._buffers[buffer.address] = buffer
        return buffer


class Scratch:
    """Copies of buffers, for a launch without side effects: a benchmark's."""

    def __init__(self, reach: Reach | None) -> None:
        self._reach = reach
        self._copies: dict[int, Buffer] = {}

    def __call__(self, address: int) -> Buffer:
        assert self._reach is not None
        return self.copy(self._reach(address))

    def copy(self, buffer: Buffer) -> Buffer:
        result = self._copies.get(buffer.address)
        if result is None:
            result = Buffer(
                buffer.address, buffer.size_bytes, buffer.sip_id, buffer.label, buffer.has_data
            )
            if buffer.has_data:
                result.bytes[:] = buffer.bytes
            self._copies[buffer.address] = result
        return result

    def params(self, params: list[Any]) -> list[Any]:
        """Return the parameters of a launch, on copies."""
        return [
            PointerArg(self.copy(param.buffer), param.offset_bytes)
            if isinstance(param, PointerArg)
            else param
            for param in params
        ]


def run_watched(
    run: Run,
    engine: KernelEngine,
    plan: LivePlan,
    params: list[Any],
    reach: Reach,
    launched: Launched,
    tuned: frozenset[str] | None = None,
) -> Executed:
    """Run a launch on data, checked by the run's sanitizer if it has one.

    ``tuned``: a tuner has benchmarked it, and resets these arguments.

    Raises:
        NoDataError: The run has none, and what the program has put into memory is not enough.
    """
    if not run.has_data:
        try:
            return engine.run_live(plan, params, reach, reach.sip_id)
        except NeedsDataError as reason:
            raise plan.no_data_error(reason.with_traceback(None)) from None
    watch = None
    if run.sanitizer is not None:
        watch = run.sanitizer.watch(plan.kernel.binary.module, plan.grid, params, launched)
    execute = partial(engine.run_live, plan, params, reach, reach.sip_id, watch)
    if tuned is None:
        executed = execute()
    else:
        value = list(params)

        def again(scratch: Scratch) -> None:
            engine.run_live(plan, scratch.params(value), scratch, reach.sip_id)

        executed = run_twice(execute, again, Scratch(reach), plan, value, tuned)
    if watch is not None:
        watch.end(executed.pointers)
    return executed


def run_on_copies(
    run: Run, engine: KernelEngine, plan: LivePlan, params: list[Any], reach: Reach
) -> Executed:
    """Run a launch without side effects: a benchmark's.

    Raises:
        NoDataError: As :func:`run_watched`.
    """
    scratch = Scratch(reach)
    try:
        return engine.run_live(plan, scratch.params(params), scratch, reach.sip_id)
    except NeedsDataError as reason:
        raise plan.no_data_error(reason.with_traceback(None)) from None


class LiveLaunch(StreamCommand):
    """One launch that is run on data, and scheduled, when it starts."""

    def __init__(
        self,
        run: Run,
        engine: KernelEngine,
        plan: LivePlan,
        policies: Policies,
        addresses: list[int],
        params: list[Any],
        reach: Reach,
        state: RankState,
        name: str,
        executed: Executed | None = None,
    ) -> None:
        """Prepare a launch; without data, what is known of it has been ``executed`` already."""
        super().__init__(run.simulation.env, name)
        self._run, self._engine, self._plan = run, engine, plan
        self._policies = policies
        self._addresses = addresses
        self._params = params
        self._reach: Reach | None = reach
        self._executed = executed
        self._rank = state.rank
        self._tuned = state.tuned
        self._sip_id = state.sip_id
        self.met: tuple[tuple[KernelOperand, ...], list[int]] = ((), [])
        """What it used of memory, in a run whose actions are kept."""
        self.engine = run.devices.sip(state.sip_id).pes
        self._stream = run.queue_for(state.sip_id).name

    def begin(self) -> int:
        run = self._run
        executed, self._executed = self._executed or self._execute(), None
        self._addresses += [pointer.buffer.address for pointer in executed.reached]
        operands = kernel_operands(executed.trace)
        if run.keeper is not None:
            self.met = (operands, self._addresses)
        held = meet_operands(run.devices.sip(self._sip_id).cache, operands, self._addresses)
        cached = cached_shares(operands, held)
        tables = tables_of(gathered_params(executed.trace), executed.pointers)
        conditions = self._engine.conditions(
            self._sip_id, self._policies, cached, self.queued, tables, self._plan.kernel.binary
        )
        self.template = self._engine.schedule(
            executed.trace, self._sip_id, conditions, self.label, self._plan.arguments
        )
        return self.template.duration_ps

    def _execute(self) -> Executed:
        run, params = self._run, self._params
        assert self._reach is not None
        reach, self._reach, self._params = self._reach, None, []
        run.replay_queue.drain()
        launched = Launched(self.label, self._rank, self.clock)
        return run_watched(run, self._engine, self._plan, params, reach, launched, self._tuned)

    def finish(self) -> None:
        self.ended_by = self._run.recorder.command(
            self.template,
            self._rank,
            self._sip_id,
            self.start_ps,
            self.end_ps,
            self._stream,
            self.after,
            tuple(self._addresses),
        )

    def describe(self) -> str:
        return f"kernel {self.label} on SIP {self._sip_id} (rank {self._rank})"
