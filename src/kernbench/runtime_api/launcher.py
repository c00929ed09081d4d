"""From a compiled kernel and its arguments to a command on the rank's stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernbench.replay import PointerArg
from kernbench.runtime_api.argument_errors import (
    bounds_error,
    check_race,
    pointer_argument,
)
from kernbench.runtime_api.kernel_engine import Grid, KernelEngine, Policies
from kernbench.runtime_api.kernel_plan import KernelEntry, KernelPlan
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine import StreamCommand

if TYPE_CHECKING:
    from kernbench.memory import Buffer
    from kernbench.op_log import Template
    from kernbench.runtime_api.rank_state import RankState
    from kernbench.runtime_api.run import Run
    from kernbench.triton_backend import KernelBinary


class KernelLaunch(StreamCommand):
    """One launch on its way: scheduled when it starts, on record when it ends.

    It holds buffers and not tensors: what the program frees meanwhile is free at once, as the
    stream is in order, and the record still has the bytes.
    """

    def __init__(
        self,
        launcher: KernelLauncher,
        plan: KernelPlan,
        policies: Policies,
        addresses: list[int],
        params: list[Any],
        state: RankState,
        name: str,
    ) -> None:
        self.env = launcher.run.simulation.env
        self.callbacks = []
        self.label = name
        self._launcher = launcher
        self._plan = plan
        self._policies = policies
        self._addresses = addresses
        self._params = params
        self._rank = state.rank
        self._sip_id = state.sip_id
        self._template: Template | None = None
        self.engine = launcher.run.pes(state.sip_id)
        self._stream = launcher.run.queue_for(state.sip_id).name

    def begin(self) -> int:
        template = self._launcher.template(self._plan, self._policies, self._sip_id, self.label)
        self._template = template
        return template.duration_ps

    def finish(self) -> None:
        run = self._launcher.run
        run.log(
            self._template,
            (self._rank,),
            (self._sip_id,),
            (self.start_ps,),
            (self.end_ps,),
            self._stream,
            tuple(self._addresses),
        )
        if run.has_data:
            trace, params, engine = self._plan.trace, self._params, self._launcher.engine
            run.replay_queue.push(self.describe(), lambda: engine.run(trace, params))
            # A buffer keeps its last writer; that must not keep other buffers alive.
            self._params = []

    def describe(self) -> str:
        return f"kernel {self.label} on SIP {self._sip_id} (rank {self._rank})"


class KernelLauncher:
    """Implements ``triton_backend.Launcher`` for one run."""

    def __init__(self, run: Run, engine: KernelEngine) -> None:
        self.run = run
        self.engine = engine
        self._entries: dict[KernelBinary, KernelEntry] = {}

    def launch(self, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]) -> None:
        """Enqueue a kernel on the current rank's SIP; ``args`` by parameter of the TTIR function.

        Raises:
            OutOfBoundsError: It would touch memory outside of a tensor.
            BadPointerError: A pointer argument is no live tensor of this run on the rank's SIP.
            UsageError: It would race with a collective that was not waited for.
        """
        run = self.run
        run.check_open(f"kernel {binary.name}")
        entry = self._entries.get(binary)
        if entry is None:
            entry = self._entries[binary] = KernelEntry(binary)
        key = (grid, entry.pick_ints(args))
        plan = entry.plans.get(key)
        if plan is None:
            plan = entry.plans[key] = entry.build_plan(self.engine, grid, args)
        state = run.rank_state
        addresses = [0] * len(args)
        params = list(args)
        written, policies = self._bind(plan, state, addresses, params)
        name = state.launch_label or entry.name
        if run.probed_ps is not None:
            run.probed_ps += self.template(plan, policies, state.sip_id, name).duration_ps
            return
        if not plan.templates:
            # What cannot be scheduled at all is an error of the launch, not of whoever waits.
            self.template(plan, policies, state.sip_id, name)
        if not run.has_data:
            params = []
        launch = KernelLaunch(self, plan, policies, addresses, params, state, name)
        run.pass_launch_time(name)
        for buffer in written:
            buffer.last_writer = launch
        state.last_launch = launch
        run.queue_for(state.sip_id).submit(launch)

    def template(self, plan: KernelPlan, policies: Policies, sip_id: int, name: str) -> Template:
        """Return the schedule for the state that the machine is in now."""
        run = self.run
        share = run.network.hbm_share(sip_id, run.simulation.now_ps) if run.has_network else 0.0
        # SIPs without a description of their own share one object.
        key = (id(run.machine.sip_at(sip_id)), share, name, policies)
        found = plan.templates.get(key)
        if found is None:
            found = self.engine.schedule(plan.trace, sip_id, policies, share, name)
            plan.templates[key] = found
        return found

    def tcm_capacity_bytes(self) -> int:
        """Return the TCM of one PE of the current rank's SIP."""
        return self.run.machine.sip_at(self.run.rank_state.sip_id).tcm_bytes

    def num_pes(self) -> int:
        """Return how many PEs the current rank's SIP has."""
        return self.run.machine.sip_at(self.run.rank_state.sip_id).num_pes

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        """Return the modeled device time of what ``fn`` launches; no clock moves, no data."""
        run = self.run
        outer, run.probed_ps = run.probed_ps, 0
        try:
            fn()
            return run.probed_ps / 1e9
        finally:
            run.probed_ps = outer

    def _bind(
        self, plan: KernelPlan, state: RankState, addresses: list[int], params: list[Any]
    ) -> tuple[list[Buffer], Policies]:
        """Check the tensors among ``params`` and put their buffers and addresses in their place.

        Returns the buffers that the kernel writes, and the placements that tensors ask for.
        """
        run = self.run
        written: list[Buffer] = []
        policies: Policies = ()
        for index, low, high, writes in plan.pointers:
            tensor = params[index]
            if (
                type(tensor) is not Tensor
                or tensor.context is not run
                or tensor.buffer.sip_id != state.sip_id
            ):
                tensor = pointer_argument(run, plan.kernel, index, tensor, state)
            buffer = tensor.buffer
            start = tensor._address - buffer.address
            if buffer.in_flight:
                check_race(plan.kernel, index, tensor, (start + low, start + high), writes)
            if start + low < 0 or start + high > buffer.size_bytes:
                raise bounds_error(self.engine, plan, index, tensor, state)
            addresses[index] = tensor._address
            params[index] = PointerArg(buffer, start)
            if writes:
                written.append(buffer)
            if tensor.dp is not None:
                policies += ((index, tensor.dp),)
        return written, policies
