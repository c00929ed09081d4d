"""``kernbench kernel show``: a kernel's TTIR, commands, TCM and schedule (ADR-0052)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.cli.console.progress import is_terminal
from kernbench.cli.kernel_text import (
    command_lines,
    format_kib,
    tcm_lines,
    timeline_lines,
    ttir_lines,
)
from kernbench.cli.programs.reporting import DONE, guarded
from kernbench.commands import Engine, by_path
from kernbench.errors import UnknownNameError, UsageError
from kernbench.hardware import Machine, SipSpec, load_machine
from kernbench.kernel_ir import parse_module, tcm_use
from kernbench.kernel_time import KernelOutline, outline_kernel
from kernbench.report import format_ns

if TYPE_CHECKING:
    from kernbench.cli.programs.kernel_capture import CapturedLaunch

_NARROWEST, _WIDEST = 60, 120
_MOST_PATHS = 8
"""The most paths shown of a launch whose control flow depends on data: each program may have its
own."""


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
    """Print everything about a kernel and return the exit status."""

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
    from kernbench.cli.programs.kernel_capture import capture

    captured = capture(
        file, kernel, options.arguments, options.machine, options.ranks, only_first=not options.all
    )
    for number, launch in enumerate(captured.launches, start=1):
        of = f" ({number} of {len(captured.launches)})" if options.all else ""
        yield from _launch(launch, captured.machine, of, width)
    if captured.has_data:
        yield "", ["", "The program ran on data: what one of its kernels does depends on that."]
    if not options.all:
        yield "", ["", "This is its first launch; --all shows every distinct one."]
    elif captured.failure:
        with_data = "" if captured.has_data else " (it ran without data)"
        yield "", ["", f"The program ended early{with_data}: {captured.failure}"]


def _ttir_file(path: Path, options: ShowOptions, width: int) -> Iterator[Section]:
    if not path.is_file():
        raise UnknownNameError(f"there is no file {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not TTIR: it is not text") from None
    module = parse_module(text)
    yield "", [f"kernel {module.kernel.name}, num_stages {options.num_stages}"]
    yield ("signature", [f"  {param.name:<20} {param.type}" for param in module.kernel.params])
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
    sip = machine.sip_at(launch.sip_id)
    share = _share_of_tcm(binary.tcm.total_bytes, sip.tcm_bytes)
    yield f"TCM: {share}", tcm_lines(binary.tcm, width)
    yield from _commands(launch, width)
    outline = outline_kernel(launch.trace, machine, launch.sip_id, launch.conditions)
    for program in outline.programs[:_MOST_PATHS]:
        title = (
            f"program {program.program_id} on one PE: {format_ns(program.duration_ps / 1000)}"
            f" ({_count(program.num_programs, 'program')} on this path)"
        )
        yield title, timeline_lines(program, width)
    yield (
        f"grid: {format_ns(launch.template.duration_ps / 1000)}",
        list(_grid(launch, outline, sip)),
    )


def _signature(launch: CapturedLaunch) -> Iterator[str]:
    params = launch.binary.module.kernel.params
    for param, type_ in zip(params, launch.binary.signature, strict=True):
        value = launch.ints.get(param.index)
        line = f"  {param.name:<20} {type_:<9}" + ("" if value is None else f" = {value}")
        yield line.rstrip()
    for name, value_text in launch.binary.constants:
        yield f"  {name:<20} {'constexpr':<9} = {value_text}"


def _commands(launch: CapturedLaunch, width: int) -> Iterator[Section]:
    names = [param.name for param in launch.binary.module.kernel.params]
    groups = by_path(launch.trace).groups
    for group in groups[:_MOST_PATHS]:
        count = len(group.program_ids)
        which = f"program {group.program_ids[0]}"
        title = "commands of one program" if len(groups) == 1 else f"commands of {which}"
        if len(groups) > 1 and count > 1:
            title += f" and {_count(count - 1, 'other')}"
        yield title, command_lines(group.body, names, width)
    if len(groups) > _MOST_PATHS:
        left = len(groups) - _MOST_PATHS
        yield "", ["", f"{_count(left, 'more path')}, each of its own programs, not shown."]


def _grid(launch: CapturedLaunch, outline: KernelOutline, sip: SipSpec) -> Iterator[str]:
    """Yield the parts of a launch's time; apart from overlap, they add up to it."""
    per_pe = outline.resident_programs
    host = format_ns(sip.host_launch_ps / 1000)
    template, time = launch.template, outline.time
    yield (
        f"  {_count(launch.trace.num_programs, 'program')} on {_count(outline.num_pes, 'PE')}: "
        f"{_count(outline.num_waves, 'wave')}, up to {per_pe} at a time on a PE"
    )
    compute = max(template.engine_busy_ps.get(gemm, 0) for gemm in (Engine.GEMM, Engine.MATH))
    waiting = max(time.cool_ps - max(compute, time.stream_ps), 0)
    hot = template.duration_ps - time.front_end_ps - time.cool_ps
    runs = "" if time.stream_ps == sip.hbm_stream_ps(template.hbm_bytes) else ", in short runs"
    parts = {
        "compute": (compute, "the busier of GEMM and math, averaged over the PEs"),
        "HBM": (time.stream_ps, f"{template.hbm_bytes:,} bytes{runs or ' at full bandwidth'}"),
        "latency": (waiting, "neither is busy: filling, draining, waiting"),
        "clock": (hot, "engines that run hot are clocked lower"),
        "launch": (time.front_end_ps, f"the front end; {host} before it on the host"),
    }
    for name, (time_ps, what) in parts.items():
        if name == "clock" and not time_ps:
            continue
        yield f"  {name:<8} {format_ns(time_ps / 1000):>8}  {what}"
    bounds = {name: time_ps for name, (time_ps, _) in parts.items()}
    # A program that launches such kernels in a row waits for whichever of both takes longer.
    bounds["launch"] = max(time.front_end_ps, sip.host_launch_ps)
    bound = max(bounds, key=lambda name: bounds[name])
    yield f"  bound by {bound}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _share_of_tcm(used_bytes: int, capacity_bytes: int) -> str:
    share = 100 * used_bytes / capacity_bytes
    over = "; it does not fit" if used_bytes > capacity_bytes else ""
    return f"{format_kib(used_bytes)} of {format_kib(capacity_bytes)}, {share:.0f}%{over}"


def _print(lines: Sequence[str], *, highlight: bool) -> None:
    if highlight and is_terminal(sys.stdout):
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax("\n".join(lines), "llvm", background_color="default"))
        return
    print("\n".join(lines))
