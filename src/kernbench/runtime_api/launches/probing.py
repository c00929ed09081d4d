"""What ``triton.autotune`` measures: the modeled time of a launch that is not enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.errors import UsageError
from kernbench.kernel_time import gathered_params
from kernbench.runtime_api.base.rank_state import PLAIN_LAUNCH, RankState
from kernbench.runtime_api.launches.live_launch import LivePlan, Reach, run_on_copies
from kernbench.runtime_api.launches.paced_plan import paced_plan
from kernbench.runtime_api.launches.tables import tables_of
from kernbench.runtime_api.memory.host_tensor import HostMemory
from kernbench.runtime_api.memory.storage import KnownMemory
from kernbench.sanitizer import Launched

if TYPE_CHECKING:
    from kernbench.runtime_api.launches.kernel_engine import Grid, Policies
    from kernbench.runtime_api.launches.kernel_plan import KernelPlan
    from kernbench.runtime_api.launches.launcher import KernelLauncher
    from kernbench.triton_backend import KernelBinary


def probe_launch(
    launcher: KernelLauncher, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]
) -> int:
    """Return the modeled time of a launch in picoseconds: on an idle SIP, with cold caches.

    The arguments are checked as those of a launch are. No clock moves and no data changes, but a
    kernel that decides by data waits for the data that is there: it runs on copies of its tensors.

    Raises:
        OutOfBoundsError: The kernel would touch memory outside of a tensor.
        BadPointerError: A pointer argument is no live tensor of this run on the rank's SIP.
        NoDataError: The kernel decides by data, and the run has none.
        UsageError: The kernel talks to other SIPs, or would race with a collective.
    """
    run = launcher.run
    entry, plan = launcher.planned(binary, grid, args)
    state = run.rank_state
    name = state.launch_label or entry.name
    if run.sanitizer is not None and not isinstance(plan, LivePlan):
        run.sanitizer.check_launch(plan.trace, Launched(name, state.rank))
    params = list(args)
    _, policies = launcher.bind(plan, state, [0] * len(args), params, HostMemory(state.sip_id))
    if isinstance(plan, LivePlan) and not run.has_data:
        known = KnownMemory()
        params = known.params(params)
        if run.has_symmetric or not known.knows_something:
            raise plan.no_data_error()
    _refuse_paced(launcher, plan, params, state)
    if isinstance(plan, LivePlan):
        return _live_ps(launcher, plan, policies, params, state, name)
    attributes = state.launch_attributes or PLAIN_LAUNCH
    tables = plan.tables(params)
    template = launcher.template(plan, policies, state.sip_id, name, attributes, tables=tables)
    return template.duration_ps


def _refuse_paced(
    launcher: KernelLauncher, plan: KernelPlan | LivePlan, params: list[Any], state: RankState
) -> None:
    run = launcher.run
    if run.has_symmetric and paced_plan(run, plan, params, state.sip_id) is not None:
        raise UsageError(
            f"kernel {plan.kernel.name} communicates with other SIPs, so it cannot be benchmarked "
            "on its own; time real launches with torch.ahbm.Event"
        )


def _live_ps(
    launcher: KernelLauncher,
    plan: LivePlan,
    policies: Policies,
    params: list[Any],
    state: RankState,
    name: str,
) -> int:
    """Return the duration of a kernel that decides by data, run on copies of its tensors."""
    run, engine = launcher.run, launcher.engine
    reach = Reach(run, plan, state, params)
    run.synchronize(state.sip_id)
    run.replay_queue.drain()
    executed = run_on_copies(run, engine, plan, params, reach)
    tables = tables_of(gathered_params(executed.trace), executed.pointers)
    conditions = engine.conditions(state.sip_id, policies, tables=tables, binary=plan.kernel.binary)
    return engine.schedule(executed.trace, state.sip_id, conditions, name).duration_ps
