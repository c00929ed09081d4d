"""The schedule of a launch in outline: one program of each group, and their waves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.commands import Engine, KernelTrace, SourceLine, by_path
from kernbench.hardware import Machine
from kernbench.kernel_time.conditions import Conditions
from kernbench.kernel_time.launch.schedule import LaunchTime, launch_time
from kernbench.kernel_time.launch.waves import GroupWaves, build_waves, resident_programs


@dataclass(frozen=True, slots=True)
class CommandSpan:
    """When one command of the kernel's text runs in one program, from the program's start on."""

    engine: Engine
    kind: str
    line: SourceLine
    count: int
    """How often the program runs it."""
    start_ps: int
    """The start of its first run."""
    end_ps: int
    """The end of its last run."""
    busy_ps: int
    """How long it takes its engine, all runs together."""


@dataclass(frozen=True, slots=True)
class ProgramOutline:
    """The first program of a group, which stands for the programs that take the same path."""

    program_id: int
    num_programs: int
    duration_ps: int
    spans: tuple[CommandSpan, ...]


@dataclass(frozen=True, slots=True)
class KernelOutline:
    """A launch on one SIP."""

    programs: tuple[ProgramOutline, ...]
    num_pes: int
    num_waves: int
    resident_programs: int
    """How many programs a PE has in TCM at the same time, at most."""
    time: LaunchTime


def outline_kernel(
    trace: KernelTrace, machine: Machine, sip_id: int, conditions: Conditions | None = None
) -> KernelOutline:
    """Return the outline of the schedule that ``schedule_kernel`` gives."""
    sip = machine.sip_at(sip_id)
    conditions = conditions or Conditions()
    waves = build_waves(by_path(trace), sip, conditions)
    used = {wave for group in waves.groups for wave in group.segments.wave.tolist()}
    return KernelOutline(
        programs=tuple(_outline(group) for group in waves.groups),
        num_pes=sip.num_pes,
        num_waves=len(used),
        resident_programs=resident_programs(
            trace.tcm_bytes, trace.staged_bytes, sip, conditions.block
        ),
        time=launch_time(waves, sip, conditions),
    )


def _outline(group: GroupWaves) -> ProgramOutline:
    programs = group.segments.first_program
    first = int(np.argmin(programs))
    timed = group.timed[int(group.segments.kind[first])]
    pipeline = timed.pipeline
    # As in the op log: a program that a shared resource holds up is slowed down evenly.
    slow, plain = timed.duration_ps, max(pipeline.end_ps, 1)
    spans = tuple(
        CommandSpan(
            engine=site.queue.engine,
            kind=site.kind,
            line=site.command.line,
            count=site.count,
            start_ps=pipeline.first_start_ps[site.index] * slow // plain,
            end_ps=-(-pipeline.last_end_ps[site.index] * slow // plain),
            busy_ps=timed.costs.busy_ps[site.index],
        )
        for site in group.plan.sites
        if pipeline.first_start_ps[site.index] >= 0
    )
    num_programs = sum(group.num_programs)
    return ProgramOutline(int(programs[first]), num_programs, timed.duration_ps, spans)
