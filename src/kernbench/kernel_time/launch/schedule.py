"""The schedule of one kernel launch on one SIP (ADR-0007)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from kernbench.commands import Engine, Gemm, KernelTrace
from kernbench.hardware import PS_PER_NS, PS_PER_US, Machine, SipSpec, ceil_ps, transfer_ps
from kernbench.kernel_time.conditions import Conditions
from kernbench.kernel_time.costs.block_costs import resident_blocks, spilled_registers
from kernbench.kernel_time.costs.command_costs import gemm_flops_per_clock
from kernbench.kernel_time.launch.log_rows import build_rows
from kernbench.kernel_time.launch.paces import busy_ps
from kernbench.kernel_time.launch.waves import Waves, build_waves
from kernbench.kernel_time.launch.work import launch_work
from kernbench.kernel_time.program.queues import Queue
from kernbench.op_log import Limit, PowerPace, Template, core_ps, pace_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTime:
    """What the time of a launch is made of, the host's part aside."""

    front_end_ps: int
    makespan_ps: int
    """The time from the start of the first program to the end of the last."""
    stream_ps: int
    """HBM's time for all bytes that move, short runs counted as what could stream instead."""
    stretch: Fraction
    """How many times longer everything after the front end takes on engines that run hot, and at
    the clock of :attr:`pace`."""
    pace: PowerPace
    """What it draws, and how far a power cap lowers its clock."""

    @property
    def cool_ps(self) -> int:
        """The time after the front end at full clock."""
        # Programs of different length overlap with programs of other waves than their own.
        return max(self.makespan_ps, self.stream_ps)

    @property
    def hot_ps(self) -> int:
        """The time after the front end without a power cap."""
        return ceil_ps(self.cool_ps * self.stretch / self.pace.stretch)

    @property
    def duration_ps(self) -> int:
        """From the device's start of the launch to its end."""
        return self.front_end_ps + ceil_ps(self.cool_ps * self.stretch)


def launch_time(waves: Waves, sip: SipSpec, conditions: Conditions) -> LaunchTime:
    """Return the time of a launch whose programs run as ``waves`` says."""
    streamed = loaded = Fraction(0)
    for costs, count in waves.tally():
        streamed += costs.hbm_stream_bytes * count
        loaded += costs.hbm_load_bytes * count
    stream_ps = max(sip.hbm_stream_ps(math.ceil(streamed)), sip.hbm_load_ps(math.ceil(loaded)))
    cool_ps = max(waves.makespan_ps, stream_ps)
    front_end_ps = sip.queued_front_end_ps if conditions.queued else sip.front_end_ps
    hot = _stretch(_gemm_bound_ps(waves, sip), cool_ps, sip)
    pace = PowerPace()
    if sip.power is not None:
        core = core_ps(cool_ps, stream_ps, _needs_ps(waves, sip).values())
        work = launch_work(waves, sip, _hbm_bytes(waves))
        hot_ps, hot_core_ps = ceil_ps(cool_ps * hot), ceil_ps(core * hot)
        pace = pace_of(sip.power, work, hot_ps, hot_core_ps, front_end_ps)
    return LaunchTime(
        front_end_ps=front_end_ps,
        makespan_ps=waves.makespan_ps,
        stream_ps=stream_ps,
        stretch=hot * pace.stretch,
        pace=pace,
    )


def _hbm_bytes(waves: Waves) -> int:
    moved = (costs.hbm_bytes * count for costs, count in waves.tally())
    return math.ceil(sum(moved, Fraction(0)))


def schedule_kernel(
    trace: KernelTrace, machine: Machine, sip_id: int, conditions: Conditions | None = None
) -> Template:
    """Return when every command of a launch starts and ends, from the launch's start on.

    The duration holds the device's front end, not the host's launch. ``flops`` are those of GEMM
    commands, ``hbm_bytes`` what HBM moves, in whole bursts. Nothing here depends on addresses or
    data, so the result may be kept for the same trace, SIP description and conditions.
    """
    sip = machine.sip_at(sip_id)
    conditions = conditions or Conditions()
    waves = build_waves(trace, sip, conditions)
    hbm_bytes = _hbm_bytes(waves)
    time = launch_time(waves, sip, conditions)
    flops = sum(flops for _, flops in _gemms(waves))
    return Template(
        name=trace.name,
        kind="kernel",
        algorithm="",
        duration_ps=time.duration_ps,
        flops=flops,
        family="gemm" if flops else "membound",
        hbm_bytes=hbm_bytes,
        engine_busy_ps=_engine_busy_ps(waves, sip),
        message_bytes=0,
        bound_ps=max(_gemm_bound_ps(waves, sip), sip.hbm_stream_ps(hbm_bytes)),
        limits_ps=_limits_ps(waves, sip, time),
        size_bytes=waves.size_bytes(),
        energy_pj=time.pace.energy_pj,
        make_rows=partial(build_rows, waves, time.front_end_ps, time.stretch),
        launched_with={
            "grid": list(trace.grid),
            "num_warps": trace.num_warps,
            **_resources(sip, conditions),
        },
    )


def _resources(sip: SipSpec, conditions: Conditions) -> dict[str, int]:
    """Return, by name, how many programs a PE holds at a time, and registers of a thread spilled.

    Neither is known of a PE that does not count warps.
    """
    block = conditions.block
    if block is None or sip.pe.warps is None:
        return {}
    spilled = spilled_registers(block, sip)
    known = {"resident_programs": resident_blocks(block, sip)}
    return known | {"spilled_registers": spilled} if spilled else known


def kernel_duration_ps(
    trace: KernelTrace, machine: Machine, sip_id: int, conditions: Conditions | None = None
) -> int:
    """Return only the duration of the schedule that :func:`schedule_kernel` gives."""
    sip = machine.sip_at(sip_id)
    conditions = conditions or Conditions()
    return launch_time(build_waves(trace, sip, conditions), sip, conditions).duration_ps


def check_kernel(trace: KernelTrace, machine: Machine, sip_id: int) -> None:
    """Refuse a kernel that a SIP cannot run.

    Raises:
        MachineError: Its GEMM engine has no rate for an operand's dtype.
    """
    sip = machine.sip_at(sip_id)
    for command in trace.commands():
        if isinstance(command, Gemm):
            gemm_flops_per_clock(command, sip)


def _stretch(gemm_ps: int, busy_ps: int, sip: SipSpec) -> Fraction:
    """Return how many times longer a kernel takes because its GEMM engines run hot."""
    sustained = sip.sustained
    if sustained is None or not gemm_ps:
        return Fraction(1)
    load = min(Fraction(gemm_ps, busy_ps) / sustained.full_load, Fraction(1))
    half_ps = sustained.half_time_us * PS_PER_US
    return 1 + sustained.clock_loss * load * busy_ps / (busy_ps + half_ps)


def _gemms(waves: Waves) -> Iterator[tuple[Gemm, int]]:
    """Yield every dot of the text, and its flops in the whole launch."""
    for group in waves.groups:
        for site in group.plan.sites:
            if isinstance(site.command, Gemm):
                runs = sum(
                    kind.program_class.counts[site.index] * count
                    for kind, count in zip(group.kinds, group.num_programs, strict=True)
                )
                yield site.command, runs * site.command.flops


def _gemm_bound_ps(waves: Waves, sip: SipSpec) -> int:
    """Return the least time of all dots on all PEs of a SIP, at peak and without ragged edges."""
    clocks = sum(
        (flops / gemm_flops_per_clock(command, sip) for command, flops in _gemms(waves)),
        Fraction(0),
    )
    return ceil_ps(clocks * PS_PER_NS / sip.clock_ghz / sip.num_pes)


def _limits_ps(waves: Waves, sip: SipSpec, time: LaunchTime) -> dict[Limit, int]:
    """Return how long each part of the SIP would take by itself, at full clock."""
    limits = {**_needs_ps(waves, sip), Limit.HBM: time.stream_ps}
    working = max(limits.values())
    limits[Limit.LAUNCH] = time.front_end_ps
    limits[Limit.LATENCY] = max(time.cool_ps - working, 0)
    if time.pace.stretch > 1:
        limits[Limit.POWER] = time.duration_ps - time.front_end_ps - time.hot_ps
    return limits


def _needs_ps(waves: Waves, sip: SipSpec) -> dict[Limit, int]:
    """Return how long each part of the SIP but HBM would take by itself, at full clock."""
    busy = _engine_busy_ps(waves, sip)
    crossing = [0] * len(Queue)
    cache = between = 0
    for group in waves.groups:
        for kind, timed, count in zip(group.kinds, group.timed, group.num_programs, strict=True):
            _, on_cache, on_links = timed.costs.shares_ps
            cache += on_cache * count // kind.sharing.active
            between += on_links * count // kind.sharing.active
            for site, moved in zip(group.plan.sites, kind.program_class.traffic, strict=True):
                if moved is not None:
                    crossing[site.queue] += moved.useful_bytes * count
    return {
        Limit.GEMM: busy[Engine.GEMM],
        Limit.MATH: busy[Engine.MATH],
        Limit.CACHE: cache,
        Limit.PORT: transfer_ps(max(crossing), sip.pe.dma_port_gbps * sip.num_pes),
        Limit.CUBES: between,
    }


def _engine_busy_ps(waves: Waves, sip: SipSpec) -> dict[Engine, int]:
    """Return the busy time of each kind of engine, averaged over all PEs of the SIP."""
    busy = [0] * len(Queue)
    for group in waves.groups:
        for timed, count in zip(group.timed, group.num_programs, strict=True):
            for queue, number in enumerate(busy_ps(group.plan, timed.costs)):
                busy[queue] += number * count
    return {queue.engine: busy[queue] // sip.num_pes for queue in Queue}
