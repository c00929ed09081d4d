"""``kernbench kernel show``: what becomes of a kernel, and where its time goes (ADR-0052)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.cli.kernel_text import (
    command_lines,
    format_kib,
    tcm_lines,
    timeline_lines,
    ttir_lines,
)
from kernbench.cli.run import DONE, guarded
from kernbench.commands import Engine
from kernbench.errors import UnknownNameError, UsageError
from kernbench.hardware import Machine, SipSpec, load_machine
from kernbench.kernel_ir import parse_module, tcm_use
from kernbench.report import format_ns
from kernbench.sim_engine import KernelOutline, outline_kernel, schedule_kernel

if TYPE_CHECKING:
    from kernbench.cli.kernel_capture import CapturedLaunch
    from kernbench.commands import KernelTrace
    from kernbench.op_log import Template

_NARROWEST, _WIDEST = 60, 120


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What ``kernbench kernel show`` was given; see its ``--help``."""

    what: str
    arguments: tuple[str, ...]
    machine: str
    ranks: int | None
    num_stages: int
    all: bool
    debug: bool


def show_kernel(options: ShowOptions) -> int:
    """Print what there is to know about a kernel and return the exit status."""

    def show() -> int:
        width = min(max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST), _WIDEST)
        for title, lines in _sections(options, width):
            if title:
                print(f"\n{title}\n{'-' * len(title)}")
            _print(lines, highlight=title == "TTIR")
        return DONE

    return guarded(show, options.debug, usage=True)


Section = tuple[str, Sequence[str]]


def _sections(options: ShowOptions, width: int) -> Iterator[Section]:
    file, _, kernel = options.what.rpartition(":")
    if options.what.endswith(".ttir"):
        yield from _ttir_file(Path(options.what), options, width)
        return
    if not file or not kernel:
        raise UsageError(
            f"{options.what}: name a kernel as FILE:NAME, such as gemm.py:matmul_kernel, "
            "or a .ttir file"
        )
    from kernbench.cli.kernel_capture import capture

    found = capture(
        file,
        kernel,
        options.arguments,
        options.machine,
        options.ranks,
        only_first=not options.all,
    )
    for number, launch in enumerate(found.launches, start=1):
        of = f" ({number} of {len(found.launches)})" if options.all else ""
        yield from _launch(launch, found.machine, of, width)
    if not options.all:
        yield "", ["", "This is its first launch; --all shows every distinct one."]
    elif found.failure:
        yield "", ["", f"The program ended early (it ran without data): {found.failure}"]


def _ttir_file(path: Path, options: ShowOptions, width: int) -> Iterator[Section]:
    if not path.is_file():
        raise UnknownNameError(f"there is no file {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not TTIR: it is no text") from None
    module = parse_module(text)
    yield "", [f"kernel {module.kernel.name}, num_stages {options.num_stages}"]
    yield (
        "signature",
        [f"  {param.name:<20} {param.type}" for param in module.kernel.params],
    )
    yield "TTIR", ttir_lines(text, width)
    use = tcm_use(module, options.num_stages)
    capacity = load_machine(options.machine, 1).sip.tcm_bytes
    yield f"TCM: {_share_of_tcm(use.total_bytes, capacity)}", tcm_lines(use, width)


def _launch(launch: CapturedLaunch, machine: Machine, of: str, width: int) -> Iterator[Section]:
    binary = launch.binary
    grid = " x ".join(map(str, launch.grid))
    programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
    line = binary.module.kernel.line
    yield (
        "",
        [
            f"kernel {binary.name} at {line}{of} on {machine.name}",
            f"  grid {grid}: {programs:,} programs; num_warps {binary.num_warps}, "
            f"num_stages {binary.num_stages}",
        ],
    )
    yield "signature", list(_signature(launch))
    yield "TTIR", ttir_lines(binary.ttir, width)
    capacity = machine.sip.tcm_bytes
    yield f"TCM: {_share_of_tcm(binary.tcm.total_bytes, capacity)}", tcm_lines(binary.tcm, width)
    if launch.trace is None:
        yield "commands", [f"  not known without data: {launch.reason}"]
        return
    yield from _commands(launch, launch.trace, width)
    outline = outline_kernel(launch.trace, machine, 0)
    for program in outline.programs:
        title = (
            f"program {program.program_id} on one PE: {format_ns(program.duration_ps / 1000)}"
            f" ({program.num_programs:,} programs take this path)"
        )
        yield title, timeline_lines(program, width)
    template = schedule_kernel(launch.trace, machine, 0)
    yield (
        f"grid: {format_ns(template.duration_ps / 1000)}",
        list(_grid(launch.trace, outline, template, machine.sip)),
    )


def _signature(launch: CapturedLaunch) -> Iterator[str]:
    params = launch.binary.module.kernel.params
    for param, type_ in zip(params, launch.binary.signature, strict=True):
        value = launch.ints.get(param.index)
        line = f"  {param.name:<20} {type_:<9}" + ("" if value is None else f" = {value}")
        yield line.rstrip()
    for name, value_text in launch.binary.constants:
        yield f"  {name:<20} {'constexpr':<9} = {value_text}"


def _commands(launch: CapturedLaunch, trace: KernelTrace, width: int) -> Iterator[Section]:
    names = [param.name for param in launch.binary.module.kernel.params]
    for group in trace.groups:
        count = len(group.program_ids)
        which = f"program {group.program_ids[0]}"
        title = "commands of one program" if len(trace.groups) == 1 else f"commands of {which}"
        if len(trace.groups) > 1 and count > 1:
            title += f" and {count - 1:,} others"
        yield title, command_lines(group.body, names, width)


def _grid(
    trace: KernelTrace, outline: KernelOutline, template: Template, sip: SipSpec
) -> Iterator[str]:
    per_pe = outline.resident_programs
    yield (
        f"  {trace.num_programs:,} programs on {outline.num_pes} PEs: {outline.num_waves:,} "
        f"wave{'s' if outline.num_waves != 1 else ''}, up to {per_pe} at a time on a PE"
    )
    compute = max(template.engine_busy_ps.get(each, 0) for each in (Engine.GEMM, Engine.MATH))
    hbm = sip.hbm_stream_ps(template.hbm_bytes)
    launch = sip.host_launch_ps + sip.front_end_ps
    waiting = max(outline.makespan_ps - max(compute, hbm), 0)
    parts = {
        "compute": (compute, "the busier of GEMM and math, averaged over the PEs"),
        "HBM": (hbm, f"{template.hbm_bytes:,} bytes at full bandwidth"),
        "latency": (waiting, "neither is busy: filling, draining, waiting"),
        "launch": (launch, "host and front end"),
    }
    for name, (time_ps, what) in parts.items():
        yield f"  {name:<8} {format_ns(time_ps / 1000):>8}  {what}"
    bound = max(parts, key=lambda name: parts[name][0])
    yield f"  bound by {bound}"


def _share_of_tcm(used_bytes: int, capacity_bytes: int) -> str:
    share = 100 * used_bytes / capacity_bytes
    over = "; it does not fit" if used_bytes > capacity_bytes else ""
    return f"{format_kib(used_bytes)} of {format_kib(capacity_bytes)}, {share:.0f}%{over}"


def _print(lines: Sequence[str], *, highlight: bool) -> None:
    if highlight and sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax("\n".join(lines), "llvm", background_color="default"))
        return
    print("\n".join(lines))
