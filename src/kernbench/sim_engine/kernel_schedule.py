"""The schedule of one kernel launch on one SIP (ADR-0007)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from kernbench.commands import Engine, Gemm, KernelTrace
from kernbench.hardware import PS_PER_NS, PS_PER_US, Machine, SipSpec, ceil_ps
from kernbench.op_log import Template
from kernbench.sim_engine.conditions import Conditions
from kernbench.sim_engine.kernel_costs import gemm_flops_per_clock
from kernbench.sim_engine.kernel_plan import QUEUES
from kernbench.sim_engine.kernel_rows import build_rows
from kernbench.sim_engine.kernel_waves import Waves, build_waves


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
    costs = [each for group in waves.groups for each in group.tally()]
    hbm_bytes = math.ceil(sum((each.hbm_bytes * count for each, count in costs), Fraction(0)))
    stream_bytes = math.ceil(
        sum((each.hbm_stream_bytes * count for each, count in costs), Fraction(0))
    )
    # Programs of different length overlap with programs of other waves than their own.
    busy_ps = max(waves.makespan_ps, sip.hbm_stream_ps(stream_bytes))
    gemm_ps = _gemm_bound_ps(waves, sip)
    stretch = _stretch(gemm_ps, busy_ps, sip)
    busy_ps = ceil_ps(busy_ps * stretch)
    front_end_ps = sip.queued_front_end_ps if conditions.queued else sip.front_end_ps
    return Template(
        name=trace.name,
        kind="kernel",
        algorithm="",
        duration_ps=front_end_ps + busy_ps,
        flops=sum(flops for _, flops in _gemms(waves)),
        hbm_bytes=hbm_bytes,
        engine_busy_ps=_engine_busy_ps(waves, sip),
        message_bytes=0,
        bound_ps=max(gemm_ps, sip.hbm_stream_ps(hbm_bytes)),
        make_rows=partial(build_rows, waves, front_end_ps, stretch),
    )


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
        programs = sum(segment.count for segment in group.segments)
        for site in group.plan.sites:
            if isinstance(site.command, Gemm):
                yield site.command, programs * site.count * site.command.flops


def _gemm_bound_ps(waves: Waves, sip: SipSpec) -> int:
    """Return the least time of all dots on all PEs of a SIP, at peak and without ragged edges."""
    clocks = sum(
        (flops / gemm_flops_per_clock(command, sip) for command, flops in _gemms(waves)),
        Fraction(0),
    )
    return ceil_ps(clocks * PS_PER_NS / sip.clock_ghz / sip.num_pes)


def _engine_busy_ps(waves: Waves, sip: SipSpec) -> dict[Engine, int]:
    """Return the busy time of each sort of engine, averaged over all PEs of the SIP."""
    busy = [0] * len(QUEUES)
    for group in waves.groups:
        for costs, count in group.tally():
            for site in group.plan.sites:
                busy[site.queue] += costs.busy_ps[site.index] * count
    return {engine: total // sip.num_pes for engine, total in zip(QUEUES, busy, strict=True)}
