"""Which launches are paced by virtual time, and how such a launch is made from its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernbench.commands import by_path
from kernbench.kernel_time import KernelOperands, cached_shares, meet_operands
from kernbench.replay import PointerArg
from kernbench.runtime_api.launches.kernel_plan import KernelPlan
from kernbench.runtime_api.launches.live_launch import LivePlan, Reach
from kernbench.sanitizer import Clock, Launched

if TYPE_CHECKING:
    from kernbench.interleaved import InterleavedLaunch
    from kernbench.kernel_time import StrandCosts
    from kernbench.runtime_api.base.rank_state import RankState
    from kernbench.runtime_api.base.run import Run
    from kernbench.runtime_api.launches.kernel_engine import Policies
    from kernbench.runtime_api.launches.launcher import KernelLauncher
    from kernbench.runtime_api.launches.paced_launch import PacedLaunch


def paced_plan(
    run: Run, plan: KernelPlan | LivePlan, params: Sequence[Any], sip_id: int
) -> KernelPlan | LivePlan | None:
    """Return the plan of a launch that communicates with others, None if it does not.

    Where others may see what it writes, a live one, if there is data. A kernel whose plan is known
    and that only stores into its own SIP counts as having done so when it ends.
    """
    buffers = [param.buffer for param in params if isinstance(param, PointerArg)]
    is_shared = any(buffer.symmetric is not None for buffer in buffers)
    if isinstance(plan, LivePlan):
        return plan if is_shared or plan.kernel.makes_pointers else None
    is_far = any(buffer.sip_id != sip_id for buffer in buffers)
    writes_far = any(
        writes and params[index].buffer.sip_id != sip_id for index, _, _, writes in plan.pointers
    )
    if run.has_data and (writes_far or (is_shared and plan.has_atomics)):
        return plan.live
    return plan if is_far else None


def build_paced(
    launcher: KernelLauncher,
    plan: KernelPlan | LivePlan,
    state: RankState,
    policies: Policies,
    addresses: list[int],
    params: list[Any],
    name: str,
) -> PacedLaunch:
    """Return the launch of a plan that :func:`paced_plan` gave."""
    from kernbench.runtime_api.launches.paced_launch import PacedLaunch

    run, engine, sip_id = launcher.run, launcher.engine, state.sip_id
    # What is loaded from peers is not cached here; what a live plan touches is not known.
    operands = KernelOperands(
        operand
        for operand in (() if isinstance(plan, LivePlan) else plan.operands)
        if params[operand.param].buffer.sip_id == sip_id
    )

    def costs(queued: bool) -> StrandCosts:
        held = meet_operands(run.devices.sip(sip_id).cache, operands, addresses)
        cached = cached_shares(operands, held)
        conditions = engine.conditions(sip_id, policies, cached, queued, binary=plan.kernel.binary)
        return engine.strand_costs(sip_id, conditions)

    own = [
        params[index].buffer
        for index, _, _, writes in plan.pointers
        if writes and params[index].buffer.sip_id == sip_id
    ]
    if isinstance(plan, LivePlan):
        reach = Reach(run, plan, state, params)
        own += reach.written
        x, y, z = plan.grid
        trace, live = None, partial(_begin_live, launcher, plan, params, reach, state.rank)
        on_end = _tell_what_was_touched
    else:
        x, y, z = plan.trace.grid
        trace, live = by_path(plan.trace), None
        on_end = partial(_put_on_record, launcher, plan, params, state.rank)
    return PacedLaunch(
        run=run,
        name=name,
        rank=state.rank,
        sip_id=sip_id,
        num_programs=x * y * z,
        resident=engine.num_resident(plan.kernel.binary, sip_id),
        costs=costs,
        params=params,
        addresses=addresses,
        trace=trace,
        live=live,
        writes=own,
        launched_with={
            "grid": [x, y, z],
            "num_warps": plan.kernel.binary.num_warps,
            "arguments": dict(plan.arguments),
        },
        on_end=on_end,
    )


def _begin_live(
    launcher: KernelLauncher,
    plan: LivePlan,
    params: Sequence[Any],
    reach: Reach,
    rank: int,
    launch: PacedLaunch,
    begun: Clock | None,
) -> InterleavedLaunch:
    """Return the kernel of a launch on data, under the sanitizer if there is one."""
    watch, sanitizer = None, launcher.run.sanitizer
    if sanitizer is not None:
        launched = Launched(launch.label, rank, launch.clock)
        module = plan.kernel.binary.module
        watch = launch.watch = sanitizer.watch(module, plan.grid, params, launched, begun)
    return launcher.engine.pace(plan, params, reach, watch)


def _tell_what_was_touched(launch: PacedLaunch, pointers: Mapping[int, PointerArg]) -> None:
    if launch.watch is not None:
        launch.watch.end(pointers)


def _put_on_record(
    launcher: KernelLauncher,
    plan: KernelPlan,
    params: Sequence[Any],
    rank: int,
    launch: PacedLaunch,
    pointers: Mapping[int, PointerArg],
) -> None:
    if launcher.run.has_data:
        record = launcher.record(plan, params, Launched(launch.label, rank, launch.clock))
        launcher.run.replay_queue.push(launch, record, speaks=plan.speaks)
