"""From a compiled kernel and its arguments to a command on the rank's stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kernbench.clock import StreamCommand
from kernbench.kernel_ir import check_alignment
from kernbench.kernel_time import Tables, cached_shares, meet_operands
from kernbench.memory import Buffer
from kernbench.op_log import Template
from kernbench.replay import PointerArg
from kernbench.runtime_api.base.rank_state import PLAIN_LAUNCH, LaunchAttributes, Probe, RankState
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.launches.argument_errors import (
    check_race,
    pointer_argument,
    refuse_out_of_bounds,
)
from kernbench.runtime_api.launches.kept_launches import describe_launch
from kernbench.runtime_api.launches.kernel_engine import Grid, KernelEngine, Policies
from kernbench.runtime_api.launches.kernel_plan import KernelEntry, KernelPlan
from kernbench.runtime_api.launches.live_launch import (
    LiveLaunch,
    LivePlan,
    Reach,
    Scratch,
    run_watched,
)
from kernbench.runtime_api.launches.paced_plan import build_paced, paced_plan
from kernbench.runtime_api.launches.probing import probe_launch
from kernbench.runtime_api.launches.tuned import run_twice
from kernbench.runtime_api.memory.host_tensor import HostMemory
from kernbench.runtime_api.memory.storage import KnownMemory
from kernbench.runtime_api.tensors.tensor import Tensor
from kernbench.sanitizer import Launched
from kernbench.triton_backend import DeviceRates, KernelBinary

_new_tuple = tuple.__new__
"""Makes a NamedTuple: its own way is a call of Python, for each pointer of each launch."""
_MOST_HELD_BYTES = 1 << 20
"""A plan that takes more than this lets go of what programs do as soon as they are placed."""


class KernelLaunch(StreamCommand):
    """One launch on a stream: scheduled when it starts, recorded when it ends.

    It holds buffers and not tensors: what the program frees meanwhile is free at once, as the
    stream is in order, and the record still has the bytes.
    """

    def __init__(
        self,
        launcher: KernelLauncher,
        plan: KernelPlan,
        policies: Policies,
        addresses: tuple[int, ...],
        params: Sequence[Any],
        state: RankState,
        name: str,
        attributes: LaunchAttributes,
        tables: Tables,
    ) -> None:
        self.env = launcher.run.simulation.env
        self.callbacks = []
        self.label = name
        self._launcher = launcher
        self._plan = plan
        self._policies = policies
        self._attributes = attributes
        self.addresses = addresses
        self._tables = tables
        self._params = params
        self._rank = state.rank
        self._sip_id = state.sip_id
        self._tuned = state.tuned
        self._sip = sip = launcher.run.devices.sip(state.sip_id)
        self.engine = sip.pes
        self.queue = sip.queue if state.stream is None else launcher.run.queue_for(state.sip_id)

    def begin(self) -> int:
        plan = self._plan
        held = meet_operands(self._sip.cache, plan.operands, self.addresses)
        template = self._launcher.template(
            plan, self._policies, self._sip_id, self.label, self._attributes, held, self.queued,
            self._tables,
        )  # fmt: skip
        self.template = template
        return template.duration_ps

    def finish(self) -> None:
        run = self._launcher.run
        self.ended_by = run.recorder.command(
            self.template,
            self._rank,
            self._sip_id,
            self.start_ps,
            self.end_ps,
            self.queue.name,
            self.after,
            self.addresses,
        )
        if run.has_data:
            record = self._launcher.record(
                self._plan, self._params, Launched(self.label, self._rank, self.clock), self._tuned
            )
            run.replay_queue.push(self, record, speaks=self._plan.speaks)
            # A buffer keeps its last writer; that must not keep other buffers alive.
            self._params = ()

    def describe(self) -> str:
        return f"kernel {self.label} on SIP {self._sip_id} (rank {self._rank})"


class KernelLauncher:
    """Implements ``triton_backend.Launcher`` for one run."""

    def __init__(self, run: Run, engine: KernelEngine) -> None:
        self.run = run
        self.engine = engine
        self.cuda_architecture = run.machine.spec.cuda_architecture
        warps = run.machine.sip.pe.warps
        self.counts_warps = warps is not None
        self.warp_lanes = 0 if warps is None else warps.lanes
        # Bound once: each record holds it.
        self.execute = engine.run
        self.kept_plans = engine.kept_plans
        self._said: set[str] = set()

    def launch_named(
        self,
        name: str,
        binary: KernelBinary,
        grid: Grid,
        args: tuple[Any, ...],
        attributes: LaunchAttributes | None = None,
    ) -> None:
        """Do what ``torch.launch`` comes down to once Triton has found the binary; for ``ops``."""
        state = self.run.rank_state
        binary.check_room(self)
        outer, state.launch_label = state.launch_label, name
        outer_attributes, state.launch_attributes = state.launch_attributes, attributes
        try:
            self.launch(binary, grid, args)
        finally:
            state.launch_label, state.launch_attributes = outer, outer_attributes

    def launch(self, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]) -> None:
        """Enqueue a kernel on the current rank's SIP; ``args`` by parameter of the TTIR function.

        Raises:
            OutOfBoundsError: It would touch memory outside of a tensor.
            BadPointerError: A pointer argument is no live tensor of this run on the rank's SIP.
            UsageError: It would race with a collective that was not waited for.
        """
        run = self.run
        if run.ended:
            run.check_open(f"kernel {binary.name}")
        state = run.rank_state
        if state.probe is not None:
            state.probe.time_ps += self.probe_ps(binary, grid, args)
            return
        entry, plan = self.planned(binary, grid, args)
        if isinstance(plan, LivePlan):
            self._launch_live(plan, state, args)
            return
        if run.sanitizer is not None:
            label = state.launch_label or entry.name
            run.sanitizer.check_launch(plan.trace, Launched(label, state.rank))
        addresses = [0] * len(args)
        params = list(args)
        host = HostMemory(state.sip_id)
        written, policies = self.bind(plan, state, addresses, params, host)
        name = state.launch_label or entry.name
        attributes = state.launch_attributes or PLAIN_LAUNCH
        if run.has_symmetric and self._paced(plan, state, policies, addresses, params, name):
            return
        if not plan.templates:
            # What cannot be scheduled at all is an error of the launch, not of whoever waits.
            self.engine.check(plan.trace, state.sip_id)
            plan.kernel.with_kept((), attributes.cached)
        tables = plan.tables(params) if plan.gathered else ()
        if not run.has_data:
            params = []
        launch = KernelLaunch(
            self, plan, policies, tuple(addresses), params, state, name, attributes, tables
        )
        if run.keeper is not None:
            launched = (plan, policies, name, state.launch_attributes, tables)
            run.keeper.launches(launch, launched, describe_launch, state.sip_id)
        line = 0 if run.lines is None else run.lines.that_made(written)
        run.pass_launch_time(state, name, line)
        for buffer in written:
            buffer.last_writer = launch
        state.last_launch = launch
        run.enqueue(launch.queue, launch)
        if host:
            # The other library reads its memory without asking anyone.
            run.wait(launch)
            run.replay_queue.drain()

    def _launch_live(self, plan: LivePlan, state: RankState, args: tuple[Any, ...]) -> None:
        """Enqueue a kernel that decides by data.

        Raises:
            NoDataError: The run has none.
        """
        run = self.run
        addresses, params = [0] * len(args), list(args)
        host = HostMemory(state.sip_id)
        written, policies = self.bind(plan, state, addresses, params, host)
        name = state.launch_label or plan.kernel.name
        known = KnownMemory()
        if not run.has_data:
            params = known.params(params)
            if run.has_symmetric or not known.knows_something:
                raise plan.no_data_error()
        if run.has_symmetric and self._paced(plan, state, policies, addresses, params, name):
            return
        reach = Reach(run, plan, state, params)
        executed = None
        if not run.has_data:
            # Nothing that other launches compute decides what it does.
            launched = Launched(name, state.rank)
            executed = run_watched(run, self.engine, plan, params, reach, launched)
        launch = LiveLaunch(
            run, self.engine, plan, policies, addresses, params, reach, state, name, executed
        )
        queue = run.queue_for(state.sip_id)
        if run.keeper is not None:
            run.keeper.decides_by_data(launch, queue, state.sip_id)
        run.pass_launch_time(state, name)
        for buffer in (*written, *reach.written):
            buffer.last_writer = launch
        known.keep(written, launch)
        state.last_launch = launch
        run.enqueue(queue, launch)
        if host:
            run.wait(launch)

    def _paced(
        self,
        plan: KernelPlan | LivePlan,
        state: RankState,
        policies: Policies,
        addresses: list[int],
        params: list[Any],
        name: str,
    ) -> bool:
        """Enqueue a kernel if it communicates with other SIPs; return whether it does."""
        run = self.run
        paced = paced_plan(run, plan, params, state.sip_id)
        if paced is None:
            return False
        launch = build_paced(self, paced, state, policies, addresses, params, name)
        if run.keeper is not None:
            run.keeper.refused[f"kernel {name} communicates with other SIPs while it runs"] = None
        run.pass_launch_time(state, name)
        for buffer in launch.writes:
            buffer.last_writer = launch
        state.last_launch = launch
        run.enqueue(run.queue_for(state.sip_id), launch)
        return True

    def record(
        self,
        plan: KernelPlan,
        params: Sequence[Any],
        launched: Launched,
        tuned: frozenset[str] | None = None,
    ) -> Callable[[], None]:
        """Return what executes a launch on data.

        ``tuned``: a tuner has benchmarked it, and resets these arguments.
        """
        sanitizer = self.run.sanitizer
        if sanitizer is None:
            return partial(self.execute, plan.trace, params)
        once = partial(self.engine.run_checked, plan.trace, params, sanitizer, launched)
        if tuned is None:
            return once
        value = list(params)

        def again(scratch: Scratch) -> None:
            self.execute(plan.trace, scratch.params(value))

        return partial(run_twice, once, again, Scratch(None), plan, value, tuned)

    def probe_ps(self, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]) -> int:
        """Return the modeled time of a launch with cold caches; see :func:`probe_launch`."""
        return probe_launch(self, binary, grid, args)

    def planned(
        self, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]
    ) -> tuple[KernelEntry, KernelPlan | LivePlan]:
        """Return the entry of a kernel, and its plan for a grid and integer arguments."""
        entry = self.engine.entry_of(binary)
        key = (grid, entry.pick_ints(args))
        plan = entry.plans.get(key)
        if plan is None:
            plan = entry.build_plan(self.engine, grid, args)
            self.kept_plans.add(entry, key, plan)
        else:
            plan.is_used = True
        return entry, plan

    def template(
        self,
        plan: KernelPlan,
        policies: Policies,
        sip_id: int,
        name: str,
        attributes: LaunchAttributes,
        held: tuple[int, ...] = (),
        queued: bool = False,
        tables: Tables = (),
    ) -> Template:
        """Return the schedule for the current state of the machine.

        ``held`` is what the cache holds of the operands (:func:`meet_operands`); without it, only
        what the attributes say. ``tables`` are the sizes of what is read by loaded indices.

        Raises:
            UsageError: The attributes name a parameter that the kernel does not have.
        """
        queued = queued or attributes.follows
        # SIPs without a description of their own share one object.
        spec = self.run.devices.sip(sip_id).spec
        key = (id(spec), name, policies, queued, held, attributes.cached, tables)
        schedule = plan.templates.get(key)
        if schedule is None:
            cached = cached_shares(plan.operands, held) if held else ()
            if attributes.cached:
                cached = plan.kernel.with_kept(cached, attributes.cached)
            conditions = self.engine.conditions(
                sip_id, policies, cached, queued, tables, plan.kernel.binary
            )
            schedule = self.engine.schedule(plan.trace, sip_id, conditions, name, plan.arguments)
            plan.keep(key, schedule)
            self.kept_plans.grow(schedule.size_bytes)
        return schedule

    def settle(self, plan: KernelPlan, sip_id: int, tables: Tables) -> None:
        """Place the programs of a launch, and let go of what they do where nobody asks again.

        Hosts run ahead of their devices by hundreds of launches, whose traces together take
        gigabytes. Only data and checks need them.
        """
        if self.run.has_data or self.run.sanitizer is not None:
            return
        if plan.size_bytes > _MOST_HELD_BYTES:
            conditions = self.engine.conditions(
                sip_id, (), tables=tables, binary=plan.kernel.binary
            )
            self.engine.place(plan.trace, sip_id, conditions)
            self.kept_plans.grow(-plan.release())

    def tcm_capacity_bytes(self) -> int:
        """Return the TCM of one PE of the current rank's SIP."""
        return self.run.devices.sip(self.run.rank_state.sip_id).tcm_bytes

    def shared_memory_bytes(self) -> int:
        """Return the shared memory per program that host code is told of, in bytes."""
        return self.run.devices.sip(self.run.rank_state.sip_id).shared_memory_bytes

    def most_resident(self, binary: KernelBinary) -> int:
        """Return how many programs of a kernel the current rank's SIP holds at a time."""
        return self.engine.most_resident(binary, self.run.rank_state.sip_id)

    def num_pes(self) -> int:
        """Return how many PEs the current rank's SIP has."""
        return self.run.machine.sip_at(self.run.rank_state.sip_id).num_pes

    def device_rates(self) -> DeviceRates:
        """Return clock, nominal memory bandwidth and an event's time of the current rank's SIP."""
        sip = self.run.machine.sip_at(self.run.rank_state.sip_id)
        hbm_gbps = sip.cube.hbm_bandwidth_gbps * sip.num_cubes
        return DeviceRates(float(sip.clock_ghz), float(hbm_gbps), sip.event_ps / 1e9)

    def latest_ns(self) -> Callable[[], float] | None:
        """Return what waits for the rank's latest launch and gives its time.

        None if a benchmark is under way, whose launches are on no stream.
        """
        run = self.run
        state = run.rank_state
        launch = state.last_launch
        if state.probe is not None or not isinstance(launch, StreamCommand):
            return None

        def time_ns() -> float:
            run.wait(launch)
            return (launch.end_ps - launch.start_ps) / 1000

        return time_ns

    def tunes(self, kept: frozenset[str] | None) -> None:
        """Note that a tuner benchmarks the kernel whose launch follows; see ``Launcher``."""
        checks = self.run.sanitizer is not None and self.run.has_data
        self.run.rank_state.tuned = kept if checks else None

    def remark(self, line: str) -> None:
        """Have the report of the run say a line, once; see ``Launcher``."""
        if line not in self._said:
            self._said.add(line)
            self.run.remarks.append(lambda: [line])

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        """Return the modeled device time of what ``fn`` launches; no clock moves, no data."""
        state = self.run.rank_state
        if self.run.keeper is not None:
            self.run.keeper.asked["measurements of kernels (autotuning)"] += 1
        outer, probe = state.probe, Probe()
        state.probe = probe
        try:
            fn()
        finally:
            state.probe = outer
        return probe.time_ps / 1e9

    def check_alignments(self, plan: KernelPlan | LivePlan, addresses: Sequence[int]) -> None:
        """Hold the addresses of arguments to what the kernel's descriptors demand.

        Raises:
            BadPointerError: One is no multiple of what it must be.
        """
        for alignment in plan.alignments:
            check_alignment(
                plan.kernel.name,
                alignment.line,
                f"its base in argument {plan.kernel.param_names[alignment.param]}",
                addresses[alignment.param] + alignment.residue,
                alignment.multiple,
            )

    def bind(
        self,
        plan: KernelPlan | LivePlan,
        state: RankState,
        addresses: list[int],
        params: list[Any],
        host: HostMemory,
    ) -> tuple[list[Buffer], Policies]:
        """Check the tensors among ``params`` and replace them by their buffers and addresses.

        Returns the buffers that the kernel writes, and the placements that tensors ask for.
        """
        run = self.run
        written: list[Buffer] = []
        policies: Policies = ()
        for index, low, high, writes in plan.pointers:
            tensor = params[index]
            if (
                type(tensor) is not Tensor
                or tensor.context.run is not run
                or tensor.buffer.sip_id != state.sip_id
            ):
                tensor = pointer_argument(run, plan.kernel, index, tensor, state, host)
            buffer = tensor.buffer
            start = tensor._address - buffer.address
            if buffer.in_flight:
                is_live = isinstance(plan, LivePlan)
                span = (0, buffer.size_bytes) if is_live else (start + low, start + high)
                check_race(plan.kernel, index, tensor, span, writes)
            if start + low < 0 or start + high > buffer.size_bytes:
                assert isinstance(plan, KernelPlan)
                refuse_out_of_bounds(self.engine, plan, index, tensor, state)
            addresses[index] = tensor._address
            params[index] = _new_tuple(PointerArg, (buffer, start))
            if writes:
                written.append(buffer)
            if tensor.dp is not None:
                policies += ((index, tensor.dp),)
        if plan.alignments:
            self.check_alignments(plan, addresses)
        return written, policies
