"""Triton kernels that a PyTorch program launches on tensors of its simulated devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from kernbench.errors import BadPointerError, NoDataError, UsageError
from kernbench.kernel_time import Tables, gathered_params
from kernbench.library_kernels import Reuse
from kernbench.replay import PointerArg
from kernbench.runtime_api import (
    PLAIN_LAUNCH,
    Grid,
    HostMemory,
    KernelEngine,
    KernelLauncher,
    KernelPlan,
    LivePlan,
    Place,
    RankState,
    Reach,
    Run,
    build_paced,
    describe_launch,
    paced_plan,
    refuse_out_of_bounds,
    run_on_copies,
    run_watched,
    tables_of,
)
from kernbench.sanitizer import Launched
from kernbench.torch_bridge.base.operation_timing import (
    GraphRun,
    OperationTiming,
    held_steps,
    phase_now,
)
from kernbench.torch_bridge.dispatch.even_choices import tell
from kernbench.torch_bridge.dispatch.known_launches import (
    LiveLaunches,
    follow_launch,
    forget_written,
    take_for_equal,
)
from kernbench.torch_bridge.dispatch.touching import count_writes
from kernbench.torch_bridge.placement.in_use import find_use
from kernbench.torch_bridge.placement.names import device_at, executing
from kernbench.torch_bridge.placement.residence import Residence, residence_of
from kernbench.torch_bridge.processes.process import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernbench.interleaved import Executed
    from kernbench.memory import Buffer
    from kernbench.op_log import Template
    from kernbench.triton_backend import KernelBinary


class TorchLauncher(KernelLauncher):
    """Launches kernels as the runtime does, but on PyTorch's memory and in program order.

    A kernel's data is computed at its launch, like that of PyTorch's own operations; it is timed
    as an operation on the current stream.
    """

    def __init__(self, run: Run, engine: KernelEngine) -> None:
        super().__init__(run, engine)
        self._live = LiveLaunches()

    def launch(self, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]) -> None:
        """Compute a kernel, and enqueue it on the current stream of the rank's device.

        Raises:
            BadPointerError: A pointer argument is not a tensor on the rank's current device.
            OutOfBoundsError: It accesses memory outside of a tensor's storage.
            UsageError: It accesses a tensor of a pending collective.
            NoDataError: Its control flow depends on data, and the run has none.
        """
        process = current()
        state, run = process.state, self.run
        if state.probe is not None:
            state.probe.time_ps += self.probe_ps(binary, grid, args)
            return
        entry, plan = self.planned(binary, grid, args)
        if process.capture is not None:
            args = _with_tensors(plan, args)
            written = [args[index] for index, _, _, writes in plan.pointers if writes]
            process.capture.take_kernel(self.launch, (binary, grid, args), written)
        params = self._params_of(plan, args, state)
        if run.has_symmetric and self._launch_paced(plan, params, entry.name, state):
            return
        if isinstance(plan, LivePlan):
            timing = self._run_live(plan, params, state)
        else:
            tables = _tables(plan, args) if plan.gathered else ()
            timing = self._timing(plan, state.sip_id, tables)
            if run.sanitizer is not None:
                run.sanitizer.check_launch(plan.trace, Launched(entry.name, state.rank))
            launched = self._launched(entry.name, state)
            if run.has_data:
                self.record(plan, params, launched, state.tuned)()
            else:
                follow_launch(
                    plan, params, state.sip_id, lambda known: self.record(plan, known, launched)()
                )
        if not process.is_replaying:
            process.host.owe_triton(len(args))
            program = _in_program(timing, plan, args, process.host.graph)
            process.host.launch(entry.name, program, state.sip_id)

    def _launched(self, name: str, state: RankState) -> Launched:
        """Return whose launch it is, and under the sanitizer its place among operations."""
        process = current()
        queue, order = process.host.queue_of(state.sip_id), process.order
        if order is None or not order.finds_races or hasattr(queue, "stands_for"):
            return Launched(name, state.rank)
        return Launched(name, state.rank, order.on_stream(queue))

    def _launch_paced(
        self, plan: KernelPlan | LivePlan, params: list[Any], name: str, state: RankState
    ) -> bool:
        """Run a kernel to its end if it communicates with other SIPs; return whether it does.

        What it writes depends on what others do meanwhile, and PyTorch's next operation may read
        it: the rank waits, and others run.
        """
        process, run = current(), self.run
        paced = paced_plan(run, plan, params, state.sip_id)
        if paced is None:
            return False
        if process.capture is not None:
            process.capture.refuse(f"kernel {name}, which communicates with other devices,")
        if run.keeper is not None:
            run.keeper.refused[f"kernel {name} communicates with other SIPs while it runs"] = None
        addresses = [
            param.buffer.address + param.offset_bytes if isinstance(param, PointerArg) else 0
            for param in params
        ]
        launch = build_paced(self, paced, state, (), addresses, params, name)
        process.host.owe_triton(len(params))
        launch.earliest_ps = process.host.spend(name)
        process.host.queue_of(state.sip_id).submit(launch)
        rank = run.simulation.running
        if rank is not None:
            rank.host_ps = process.host.paid_ps
        process.session.waits_for_kernels = True
        run.simulation.wait(launch)
        launch.waited_for()
        run.replay_queue.drain()
        return True

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        """Return the modeled time of all that ``fn`` launches, PyTorch's operations included."""
        times_ps: list[int] = []
        with current().host.trying(lambda template: times_ps.append(template.duration_ps)):
            kernels_ms = super().benchmark_ms(fn)
        return kernels_ms + sum(times_ps) / 1e9

    def probe_ps(self, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]) -> int:
        """Return the modeled time of a launch, without launching.

        Raises:
            KernbenchError: As :meth:`launch`.
        """
        entry, plan = self.planned(binary, grid, args)
        state, run = current().state, self.run
        params = self._params_of(plan, args, state)
        if not run.has_data and not isinstance(plan, LivePlan):
            forget_written(plan, params)
        if isinstance(plan, LivePlan):
            reach = self._reach(plan, params, state)
            executed = run_on_copies(run, self.engine, plan, params, reach)
            timing = self._timing_of(plan, executed, state.sip_id)
        else:
            tables = _tables(plan, args) if plan.gathered else ()
            timing = self._timing(plan, state.sip_id, tables)
            if run.sanitizer is not None:
                run.sanitizer.check_launch(plan.trace, Launched(entry.name, state.rank))
        return timing.template(False).duration_ps

    def _timing(self, plan: KernelPlan, sip_id: int, tables: Tables) -> OperationTiming:
        """Return the schedules of a launch; SIPs with the same description share them."""
        key = (id(self.run.machine.sip_at(sip_id)), tables)
        operation_timing: OperationTiming | None = plan.timings.get(key)
        if operation_timing is None:
            self.engine.check(plan.trace, sip_id)
            self.settle(plan, sip_id, tables)
            name = plan.kernel.name

            def timing(reuse: Reuse | None) -> OperationTiming:
                held = held_steps(reuse, plan, self.run.machine.sip_at(sip_id))

                def make(queued: bool) -> Template:
                    return self.template(
                        plan, (), sip_id, name, PLAIN_LAUNCH, held, queued=queued, tables=tables
                    )

                result = OperationTiming(make, timing)
                if keeper is not None:
                    described = describe_launch(keeper, plan, (), name, None, tables)
                    described |= {"kind": "kernel operation", "sip": sip_id}
                    if reuse is not None:
                        described |= {"phase": int(reuse.phase), "cold": reuse.cold_params}
                    keeper.comes_from(result, described)
                return result

            keeper = self.run.keeper
            operation_timing = plan.timings[key] = timing(None)
        return operation_timing

    def _run_live(self, plan: LivePlan, params: list[Any], state: RankState) -> OperationTiming:
        """Compute a data-dependent kernel, and return the schedules of what it did."""
        run = self.run
        known = self._live.known(run, plan, params, state.sip_id)
        if known is not None:
            return known
        reach = self._reach(plan, params, state)
        launched = self._launched(plan.kernel.name, state)
        scores: list[Buffer] = []
        try:
            executed = run_watched(run, self.engine, plan, params, reach, launched, state.tuned)
        except NoDataError:
            scores = take_for_equal(plan, params)
            if not scores:
                raise
            current().session.equal_scores[plan.kernel.name] = None
            executed = run_watched(run, self.engine, plan, params, reach, launched, state.tuned)
        timing = self._timing_of(plan, executed, state.sip_id)
        if scores:
            # What it has written follows from numbers that nobody has.
            written = (params[index].buffer for index, *_, writes in plan.pointers if writes)
            for score in (*scores, *written):
                score.has_data = False
        if not run.has_data:
            self._live.keep(executed, params, timing)
            # What is captured has not written yet.
            read = {index for index, *_, writes in plan.pointers if not writes}
            for index, pointer in executed.pointers.items():
                if not pointer.buffer.has_data or (current().capture and index not in read):
                    current().session.addresses.forget_numbers(pointer.buffer)
        return timing

    def _reach(self, plan: LivePlan, params: list[Any], state: RankState) -> Reach:
        """Return the memory that a data-dependent kernel may access.

        Raises:
            NoDataError: None of its contents are known.
        """
        if not self.run.has_data and not any(
            param.buffer.has_data for param in params if isinstance(param, PointerArg)
        ):
            raise plan.no_data_error()
        return Reach(self.run, plan, state, params)

    def _timing_of(self, plan: LivePlan, executed: Executed, sip_id: int) -> OperationTiming:
        """Return the schedules of what a data-dependent kernel did."""
        engine = self.engine

        def make(queued: bool) -> Template:
            tables = tables_of(gathered_params(executed.trace), executed.pointers)
            conditions = engine.conditions(
                sip_id, (), queued=queued, tables=tables, binary=plan.kernel.binary
            )
            name = plan.kernel.name
            return engine.schedule(executed.trace, sip_id, conditions, name, plan.arguments)

        return OperationTiming(make)

    def _params_of(
        self, plan: KernelPlan | LivePlan, args: tuple[Any, ...], state: RankState
    ) -> list[Any]:
        """Check the tensors among the arguments, and replace them by their memory."""
        params, memory, order = list(args), HostMemory(state.sip_id), current().order
        known: dict[int, Buffer] = {}
        starts = [0] * len(args)
        for index, low, high, writes in plan.pointers:
            what, tensor = _name(plan, index), params[index]
            if not isinstance(tensor, Tensor):
                tensor = _tensor_at(what, tensor)
            residence = _on_device(what, tensor, state.sip_id)
            shared = getattr(tensor.untyped_storage(), "_kernbench_shared", None)
            start = tensor.storage_offset() * tensor.element_size()
            # Storages begin at multiples of more than anything asks for.
            starts[index] = start
            size = tensor.untyped_storage().nbytes()
            if isinstance(plan, LivePlan):
                first, end = 0, size
            else:
                first, end = start + low, start + high
            use = find_use(residence, first, end, writes)
            if use is not None:
                raise UsageError(
                    f"{what} {'writes' if writes else 'reads'} a tensor of shape "
                    f"{tuple(tensor.shape)} that is in use by {use.part.describe()}, called at "
                    f"{use.part.site}; call wait() on its Work first"
                )
            if not self.run.has_data:
                if isinstance(plan, LivePlan):
                    tell((tensor,))
                    buffer = current().session.addresses.known_buffer(tensor, state.sip_id)
                    # One buffer for all tensors in the same memory.
                    params[index] = PointerArg(known.setdefault(buffer.address, buffer), start)
                else:
                    params[index] = tensor
                continue
            if shared is None:
                with executing():
                    place = memory.tensor(tensor, plan.kernel.param_names[index], what)
            else:
                address = shared.address + start
                place = Place(address, shared, plan.kernel.param_names[index])
            if first < 0 or end > size:
                assert not isinstance(plan, LivePlan)
                refuse_out_of_bounds(self.engine, plan, index, place, state)
            if order is not None:
                count_writes(order, tensor, place.buffer)
            params[index] = PointerArg(place.buffer, start)
        if plan.alignments:
            self.check_alignments(plan, starts)
        return params


def _in_program(
    timing: OperationTiming, plan: KernelPlan | LivePlan, args: Any, graph: GraphRun | None
) -> OperationTiming:
    """Return the timing of a launch with what it finds in the cache."""
    if graph is None:
        return timing.in_phase(phase_now())
    cold = [
        index
        for index, *_ in plan.pointers
        if isinstance(args[index], Tensor) and args[index].untyped_storage()._cdata in graph.cold
    ]
    return timing.with_reuse(Reuse(graph.phase, cold_params=tuple(cold)))


def _name(plan: KernelPlan | LivePlan, index: int) -> str:
    return f"argument {plan.kernel.param_names[index]} of kernel {plan.kernel.name}"


def _tables(plan: KernelPlan, args: tuple[Any, ...]) -> Tables:
    """Return the sizes of the storages that a launch accesses by loaded indices."""
    tensors = _with_tensors(plan, args)
    return tuple((index, tensors[index].untyped_storage().nbytes()) for index in plan.gathered)


def _with_tensors(plan: KernelPlan | LivePlan, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a launch's arguments with every other pointer into a tensor replaced by the tensor."""
    tensors = list(args)
    for index, *_ in plan.pointers:
        if not isinstance(args[index], Tensor):
            tensors[index] = _tensor_at(_name(plan, index), args[index])
    return tuple(tensors)


def _tensor_at(what: str, value: Any) -> Tensor:
    """Return a tensor of the memory that an argument points to.

    Triton treats everything that has ``data_ptr()`` and ``dtype`` as a pointer.

    Raises:
        BadPointerError: It is not in a tensor on a simulated device.
    """
    address = int(value.data_ptr())
    # A tensor wrapped by triton.reinterpret: errors name the tensor rather than its bytes.
    base = getattr(value, "base", None)
    if isinstance(base, Tensor) and base.data_ptr() == address:
        return base
    try:
        return current().session.addresses.tensor_at(address)
    except BadPointerError as error:
        raise BadPointerError(f"{what}, a {type(value).__name__}, {error}") from None


def _on_device(what: str, tensor: Tensor, sip_id: int) -> Residence:
    """Return the residence of a tensor that is a pointer argument.

    Raises:
        BadPointerError: It is not on the device on which the kernel is launched.
    """
    residence = residence_of(tensor)
    if residence is None:
        kind = type(tensor).__name__
        raise BadPointerError(
            f'{what} lies on {tensor.device}, which a kernel cannot reach; move it with .to("cuda")'
            if kind in ("Tensor", "Parameter")
            else f"{what} is a {kind}, which has no memory of its own; pass the tensor inside, as "
            ".to_local() returns it"
        )
    if residence.sip_id != sip_id:
        raise BadPointerError(
            f"{what} lies on {residence.device}, but the current device is "
            f"{device_at(sip_id)}; call torch.cuda.set_device first, or move it"
        )
    return residence
