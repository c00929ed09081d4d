"""One run: its machine, clock, devices and log; what every part of the runtime works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kernbench.checks import Allowed, Checks
from kernbench.clock import Handle, Simulation, Stream, StreamCommand
from kernbench.commands import Engine, Space
from kernbench.errors import UsageError
from kernbench.hardware import Machine, SipSpec, described, host_noise, load_machine, ranks_of
from kernbench.logs import logger, show_logs_asked_for
from kernbench.memory import AllocationLog
from kernbench.op_log import Column, Limit, OpLog, Template, WorkCounts, pace_of
from kernbench.replay import OutsideReads
from kernbench.runtime_api.base.actions import Keeper
from kernbench.runtime_api.base.devices import Devices
from kernbench.runtime_api.base.memory_recorder import MemoryRecorder
from kernbench.runtime_api.base.ordering import Ordering, touches_of
from kernbench.runtime_api.base.rank_state import RankState
from kernbench.runtime_api.base.recorder import LineRecorder, Recorder
from kernbench.runtime_api.base.replay_queue import ReplayQueue
from kernbench.runtime_api.base.signals import Signals
from kernbench.runtime_api.base.streams import DeviceStream
from kernbench.runtime_api.memory.host_tensor import LentMemory
from kernbench.runtime_api.memory.storage import BufferView, View, find_in_flight
from kernbench.sanitizer import TouchKind
from kernbench.saved import Action, Actions
from kernbench.triton_backend import cache_remarks

if TYPE_CHECKING:
    from kernbench.kernel_time import StrandCosts, TimedStrands
    from kernbench.links import Network
    from kernbench.runtime_api.base.folding import Folding
    from kernbench.runtime_api.base.transfers import DeviceCommand
    from kernbench.sanitizer import Sanitizer


TransferKind = Literal["fill", "copy", "copy_from_host", "copy_to_host"]


class TransferTemplates:
    """The templates of a run's fills and copies; equal ones are the same object."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[TransferKind, int, int], Template] = {}

    def build(self, kind: TransferKind, sip_id: int, size_bytes: int) -> Template:
        """Return the template of one transfer on a SIP."""
        spec = self._machine.sip_at(sip_id)
        # SIPs without a description of their own share one object.
        key = (kind, id(spec), size_bytes)
        template = self._known.get(key)
        if template is None:
            template = self._known[key] = _build(kind, spec, size_bytes)
        return template


def _build(kind: TransferKind, spec: SipSpec, size_bytes: int) -> Template:
    if kind == "fill":
        ends = (Space.NONE, Space.HBM)
        engine, hbm_bytes = Engine.DMA_OUT, size_bytes
        busy_ps = spec.hbm_stream_ps(hbm_bytes)
        duration_ps = spec.front_end_ps + spec.hbm_latency_ps + busy_ps
    elif kind == "copy":
        ends = (Space.HBM, Space.HBM)
        engine, hbm_bytes = Engine.DMA_OUT, 2 * size_bytes
        busy_ps = spec.hbm_stream_ps(hbm_bytes)
        duration_ps = spec.front_end_ps + 2 * spec.hbm_latency_ps + busy_ps
    else:
        ends = (Space.HOST, Space.HBM) if kind == "copy_from_host" else (Space.HBM, Space.HOST)
        engine, hbm_bytes = Engine.HOST, size_bytes
        busy_ps = duration_ps = spec.host_copy_ps(size_bytes)
    host_bytes = size_bytes if engine is Engine.HOST else 0
    work = WorkCounts(hbm_bytes=hbm_bytes, host_bytes=host_bytes)
    return Template(
        name=kind,
        kind="fill" if kind == "fill" else "copy",
        algorithm="",
        duration_ps=duration_ps,
        flops=0,
        hbm_bytes=hbm_bytes,
        engine_busy_ps={engine: busy_ps},
        limits_ps={Limit.HBM: spec.hbm_stream_ps(hbm_bytes)},
        message_bytes=0,
        # The engines that copies take run at any clock; the PEs do nothing.
        energy_pj=pace_of(spec.power, work, 0, 0).energy_pj,
        make_rows=partial(
            _rows, kind, engine, duration_ps - busy_ps, duration_ps, size_bytes, ends
        ),
    )


def _rows(
    kind: TransferKind,
    engine: Engine,
    start_ps: int,
    end_ps: int,
    size_bytes: int,
    ends: tuple[Space, Space],
) -> dict[str, Column]:
    return {
        "engine": np.array([engine.value]),
        "kind": np.array(["dma_write" if kind == "fill" else "copy"]),
        "start_ps": np.array([start_ps], dtype=np.int64),
        "end_ps": np.array([end_ps], dtype=np.int64),
        "busy_ps": np.array([end_ps - start_ps], dtype=np.int64),
        "bytes": np.array([size_bytes], dtype=np.int64),
        "src_space": np.array([ends[0].value]),
        "dst_space": np.array([ends[1].value]),
    }


_LOG = logger("run")


class Run:
    """One run of a machine, the owner of all state that the run changes."""

    def __init__(
        self,
        machine: str | Path | Machine,
        ranks: int | None,
        data: bool,
        seed: int,
        checks: Checks | None = None,
        records_memory: bool = False,
        records_lines: bool = False,
    ) -> None:
        show_logs_asked_for()
        if ranks is not None and (type(ranks) is not int or ranks < 1):
            raise UsageError(f"ranks must be at least 1, but got {ranks!r}")
        if type(data) is not bool:
            raise UsageError(f"data must be True or False, but got {data!r}")
        if type(seed) is not int:
            raise UsageError(f"seed must be an integer, but got {seed!r}")
        if not isinstance(machine, (str, Path, Machine)):
            raise UsageError(
                "machine must be a preset's name, the path of a YAML file or a Machine, "
                f"but got {machine!r}"
            )
        self.machine = load_machine(machine, ranks)
        self.world_size = ranks_of(machine) if ranks is None else ranks
        """How many ranks the run was asked for, or has had at once; what a bench passes to
        ``spawn`` as nprocs."""
        self.has_data = data
        self.seed = seed
        self.checks = checks = checks or Checks.of()
        may_read_outside = Allowed.OUT_OF_BOUNDS_READS in checks.allowed
        self.outside = OutsideReads() if may_read_outside else None
        """Collects loads outside of a tensor where they are allowed; None where they are errors."""
        self.sanitizer: Sanitizer | None = None
        """Checks replay for mistakes, or None."""
        if checks.enabled:
            from kernbench.sanitizer import Sanitizer

            self.sanitizer = Sanitizer(checks, self.outside)
        is_ordered = Allowed.STREAM_RACES not in checks.allowed
        self.ordering = Ordering() if is_ordered and self.sanitizer is not None and data else None
        """The happens-before order, for the sanitizer."""
        self.peaks: list[Callable[[], Mapping[int, int]]] = []
        """What says the most bytes that tensors held at a time, by SIP, beside :attr:`devices`."""
        self.remarks: list[Callable[[], list[str]]] = [
            cache_remarks,
            lambda: [*described(self.machine), *self._deaths_to_come()],
        ]
        """Functions that return lines for the end of the report."""
        self.parts: dict[str, Callable[[], Any]] = {}
        """Functions that return, as JSON, what programs add to the report, by its name there."""
        self.simulation = Simulation()
        self.op_log = OpLog()
        self.op_log.woken = self.simulation.woken
        self.recorder = Recorder(self.op_log)
        self.lines = LineRecorder(self.op_log, self.recorder) if records_lines else None
        """Notes which lines of the program caused what, in a run that asks for it."""
        self.replay_queue = ReplayQueue(data)
        self.signals = Signals(self.simulation, self.replay_queue)
        self.replay_queue.on_push = self.signals.recorded
        self.transfers = TransferTemplates(self.machine)
        self.lent = LentMemory()
        """Host tensors that kernels may reach through addresses in memory."""
        self.started_s = perf_counter()
        _LOG.info(
            "machine %s: %d SIPs, links: %s; world size %d, %s",
            self.machine.name,
            self.machine.num_sips,
            self.machine.topology,
            self.world_size,
            "with data" if data else "time and shapes only",
        )
        self.ended = False
        self.main_state = RankState(rank=0, world_size=1, sip_id=0, spawn_id=-1)
        """The state of the code outside of ``spawn``."""
        self.devices = Devices(self.machine, self.simulation, data, self.lines)
        self.folding: Folding | None = None
        """Which ranks run for which others, if not all of them run (ADR-0166)."""
        if records_memory:
            self.op_log.allocations = AllocationLog()
            self.devices.memory_recorder = MemoryRecorder(
                self.op_log.allocations, self.simulation, self.main_state, self.lines
            )
        self.host_noise = host_noise(self.machine)
        """What interrupts hosts, where the machine's scenario has that."""
        self.has_symmetric = False
        """Whether ranks have shared memory with each other."""
        self._num_tensors = 0
        self.keeper: Keeper | None = None
        """Collects what the program does, so that it can be done again on another machine."""
        self.actions_of: Callable[[], Actions] | None = None
        """Returns what is done in this run, where that is known without a keeper."""

    def actions(self) -> Actions | None:
        """Return what the program has done, to be saved; None if that was not collected."""
        if self.actions_of is not None:
            return self.actions_of()
        if self.keeper is None:
            return None
        self.keeper.about["peak_bytes"] = list(self.devices.peaks().items())
        if self.folding is not None:
            self.keeper.about["folding"] = self.folding.described()
        return self.keeper.kept(self.devices.queues, self.op_log)

    def describe(self) -> str:
        """Return how far the run has come; by plain values only, as other threads ask."""
        from kernbench.report import format_ns

        text = f"{format_ns(self.simulation.now_ps / 1000)} simulated, {len(self.op_log)} launches"
        pending = len(self.replay_queue)
        return f"{text}, {pending} to compute" if pending > 1 else text

    @cached_property
    def network(self) -> Network:
        """The links between the SIPs, made on first use."""
        from kernbench.links import Network, disturb

        return disturb(Network(self.machine))

    @property
    def rank_state(self) -> RankState:
        """The state of the rank whose code runs now; main's outside of ``spawn``."""
        running = self.simulation.running
        return self.main_state if running is None else running.local

    def timed_strands(self, sip_id: int, costs: StrandCosts) -> TimedStrands:
        """Return the PEs of a SIP for a launch that begins now and talks to others."""
        from kernbench.kernel_time import TimedStrands

        return TimedStrands(self.machine, sip_id, self.network, costs, self.simulation.now_ps)

    def new_stream(self, sip_id: int) -> DeviceStream:
        """Return a new stream of a SIP, in addition to its default one."""
        return DeviceStream(self, sip_id, self.devices.add_queue(sip_id))

    def default_stream(self, sip_id: int) -> DeviceStream:
        """Return the stream that a rank uses unless it names another."""
        return DeviceStream(self, sip_id, self.devices.sip(sip_id).queue)

    def current_stream(self) -> DeviceStream:
        """Return the stream that the calling rank's launches go to."""
        state = self.rank_state
        return self.default_stream(state.sip_id) if state.stream is None else state.stream

    def queue_for(self, sip_id: int) -> Stream:
        """Return the current stream's queue, the default one's for another SIP."""
        chosen = self.rank_state.stream
        if chosen is not None and chosen.sip_id == sip_id:
            return chosen.queue
        return self.devices.sip(sip_id).queue

    def enqueue(self, stream: Stream, command: StreamCommand) -> None:
        """Enqueue a command on a stream, after what is there and what the rank has waited for."""
        if self.ordering is not None:
            self.ordering.enqueue(self.rank_state, stream, command)
        stream.submit(command)

    def submit(
        self, command: DeviceCommand, writes: View | None = None, reads: View | None = None
    ) -> DeviceCommand:
        """Enqueue a fill or a copy on its SIP's stream; costs the host time of a launch.

        It ``writes`` and ``reads`` the elements of these tensors.
        """
        state = self.rank_state
        if state.probe is not None:
            state.probe.time_ps += command.template.duration_ps
            command.callbacks = None  # type: ignore[assignment]  # SimPy's sign for "over"
            return command
        queue = self.queue_for(command.sip_id)
        if self.keeper is not None:
            self.keeper.transfers(command, queue, state.sip_id)
        self.pass_launch_time(state, command.label)
        if command.target is not None:
            command.target.last_writer = command
        self.enqueue(queue, command)
        if self.ordering is not None:
            self._note(command, writes, reads)
        return command

    def _note(self, command: DeviceCommand, writes: View | None, reads: View | None) -> None:
        """Let the record of a fill or a copy tell the sanitizer what it touches."""
        touched = [(BufferView(reads), TouchKind.READ)] if reads is not None else []
        if writes is not None:
            touched.append((BufferView(writes), TouchKind.WRITE))
        command.note(touches_of(command.template.name, command.clock, touched))
        if command.blocks_host:
            self._comes_after(command)

    def pass_launch_time(self, state: RankState, label: str, line: int = 0) -> None:
        """Advance the host clock of the current rank, whose state that is, by one launch.

        ``line`` is the number of the program's line, for a recorder of lines; 0: not known.
        """
        delay_ps = self.devices.sip(state.sip_id).launch_ps
        simulation = self.simulation
        start_ps = simulation.env.now_ps
        if self.host_noise is not None:
            self._be_interrupted(state.rank, start_ps, delay_ps)
            start_ps = simulation.env.now_ps
        simulation.sleep(delay_ps)
        span = (state.rank, "launch", label, start_ps, start_ps + delay_ps)
        lines = self.lines
        if line and lines is not None:
            lines.put(span)
            lines.latest = line
            lines.put_line(line)
        else:
            self.recorder.span(span)

    def _be_interrupted(self, rank: int, start_ps: int, work_ps: int) -> None:
        """Let the calling rank's host lose the time of interruptions of some work, before it."""
        assert self.host_noise is not None
        late_ps = self.host_noise.delay_ps(rank, start_ps, start_ps + work_ps)
        if late_ps:
            self.simulation.sleep(late_ps)
            end_ps = start_ps + late_ps
            self.recorder.span((rank, "interruption", "of the host", start_ps, end_ps))

    def wait(self, handle: Handle) -> None:
        """Block the current rank until ``handle`` has ended, and raise its error if it failed.

        One that has ended returns at once, without yielding to other ranks.

        Raises:
            UsageError: ``handle`` is nothing that a launch or a collective returns.
        """
        if not isinstance(handle, Handle):
            raise UsageError(
                f"wait takes what launch or a collective with async_op=True returns, not {handle!r}"
            )
        self.block_on(handle)
        self._comes_after(handle)

    def block_on(self, handle: Handle) -> None:
        """Block the current rank until ``handle`` has ended, without ordering its program after it.

        What a host read needs anyway does not order the program's own operations.
        """
        simulation = self.simulation
        if self.keeper is not None:
            self.keeper.waits(Action.BLOCK, handle)
        since_ps = simulation.now_ps
        simulation.wait(handle)
        handle.waited_for()
        now_ps = simulation.now_ps
        if now_ps > since_ps:
            running = simulation.running
            rank = 0 if running is None else running.rank_id
            self.recorder.span((rank, "wait", handle.label, since_ps, now_ps))
            self.recorder.waited((rank, now_ps, handle.ended_by))

    def has_ended(self, handle: Handle) -> bool:
        """Return whether ``handle`` has ended; if so, the rank is ordered after it."""
        if handle.done:
            self._comes_after(handle)
        return handle.done

    def poll(self, handle: Handle) -> bool:
        """Return whether ``handle`` has ended; polling too early costs a launch's host time."""
        if self.keeper is not None:
            self.keeper.asks(handle, self.rank_state.sip_id)
        if not handle.done:
            sip = self.machine.sip_at(self.rank_state.sip_id)
            self.simulation.idle(sip.host_launch_ps, f"a query whether {handle.label} has ended")
        return self.has_ended(handle)

    def _comes_after(self, handle: Handle) -> None:
        """Order what the current rank does from now on after ``handle``."""
        if self.ordering is not None:
            self.ordering.goes_on_after(self.rank_state, handle)

    def synchronize(self, sip_id: int) -> None:
        """Block the current rank until all streams of a SIP are idle."""
        for queue in self.devices.queues(sip_id):
            if queue.tail is not None:
                self.wait(queue.tail)
        self.replay_queue.let_speak()

    def drain(self) -> None:
        """Complete everything in flight, then replay it. Main only; idempotent.

        Raises:
            DeadlockError: Ranks wait for something that cannot come.
        """
        self.complete()
        self.replay_queue.drain()

    def complete(self) -> None:
        """Complete everything in flight. Main only; idempotent.

        Raises:
            DeadlockError: Ranks wait for something that cannot come.
        """
        if self.keeper is not None:
            self.keeper.put(Action.DRAIN)
        self.simulation.drain()
        self.devices.raise_unseen()

    def _deaths_to_come(self) -> list[str]:
        """Return what a report says of deaths that the run has ended before."""
        end_ps = self.op_log.end_ps
        return [
            f"scenario: rank {death.rank} was to die at {float(death.at_s):g} s, but the run ended "
            f"at {end_ps / 10**12:.6g} s"
            for death in self.machine.spec.scenario.deaths
            if death.at_s * 10**12 > end_ps
        ]

    def start_again(self, why: str, since_ps: int) -> None:
        """Let all ranks, which have ended, be gone, and time pass until they start again.

        Main only. ``why`` and ``since_ps`` say how the log names that time, and from when on.
        """
        simulation = self.simulation
        if self.keeper is not None:
            self.keeper.refused["ranks fail in it and are started again"] = None
        simulation.idling.forget()
        self.devices.start_again()
        delay_ps = round(self.machine.spec.scenario.restart_s * 10**12)
        simulation.sleep(max(since_ps + delay_ps - simulation.now_ps, 0))
        for rank in range(self.world_size):
            self.recorder.span((rank, "restart", why, since_ps, simulation.now_ps))

    def next_tensor_name(self) -> str:
        """Return a name for a tensor that the program did not name."""
        self._num_tensors += 1
        return f"tensor{self._num_tensors}"

    def check_open(self, what: str) -> None:
        """Refuse work after the run has ended.

        Raises:
            UsageError: It has.
        """
        if self.ended:
            raise UsageError(f"{what}: the run has ended; do it inside `with RuntimeContext(...)`")

    def can_read(self, tensor: View) -> bool:
        """Return whether a host read of the tensor is allowed now."""
        return self.has_data and find_in_flight(tensor, writes=False) is None
