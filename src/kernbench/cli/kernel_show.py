"""``kernbench kernel show``: a kernel's TTIR, commands, TCM and schedule (ADR-0052)."""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.cli.console.progress import is_terminal
from kernbench.cli.programs.reporting import DONE
from kernbench.commands import (
    Access,
    Assert,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Engine,
    Gemm,
    Loop,
    MaskTile,
    Math,
    MathClass,
    Operand,
    Param,
    Predicate,
    Print,
    Reduce,
    SourceLine,
    Splat,
    Tile,
    access_of,
    by_path,
)
from kernbench.errors import UnknownNameError, UsageError
from kernbench.hardware import Machine, SipSpec, load_machine
from kernbench.kernel_ir import TcmUse, parse_module, tcm_use
from kernbench.kernel_time import CommandSpan, KernelOutline, ProgramOutline, outline_kernel
from kernbench.report import format_ns, format_share

if TYPE_CHECKING:
    from kernbench.cli.commands.kernel import ShowOptions
    from kernbench.cli.programs.kernel_capture import CapturedLaunch


_ALIAS = re.compile(r"#loc\d*")
_DEFINED_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FILE_LINE = re.compile(r'"([^"]*)":(\d+):\d+')


def ttir_lines(ttir: str, width: int) -> list[str]:
    """Return TTIR with the source line at the end of each line instead of MLIR's locations."""
    places = _places(ttir)
    lines = []
    for raw in ttir.splitlines():
        if _DEFINED_LOCATION.match(raw):
            continue
        text, last = _without_locations(raw)
        names = [name for name in _ALIAS.findall(last) if name in places]
        place = places[names[0]] if names else ""
        lines += _two_columns(text, place, width, hanging=4)
    return lines


def _without_locations(line: str) -> tuple[str, str]:
    """Return a line of TTIR without ``loc(...)``, and what stands in the one at its end."""
    kept, last, at = "", "", 0
    while (start := line.find(" loc(", at)) >= 0:
        kept += line[at:start]
        depth, at = 1, start + 5
        while depth and at < len(line):
            depth += (line[at] == "(") - (line[at] == ")")
            at += 1
        last = line[start + 5 : at - 1]
    rest = line[at:].rstrip()
    return (kept + rest).rstrip(), "" if rest else last


def _places(ttir: str) -> dict[str, str]:
    """Return ``file:line`` by location; one that is named or inlined leads to another."""
    defined = {
        result[1]: result[2]
        for line in ttir.splitlines()
        if (result := _DEFINED_LOCATION.match(line)) is not None
    }
    places: dict[str, str] = {}
    for name, text in defined.items():
        for _ in range(len(defined)):
            direct = _FILE_LINE.search(text)
            if direct is not None:
                places[name] = f"{direct[1].rsplit('/', 1)[-1]}:{direct[2]}"
                break
            following = _ALIAS.search(text)
            if following is None or following[0] not in defined:
                break
            text = defined[following[0]]
    return places


def command_lines(body: Sequence[Command], params: Sequence[str], width: int) -> list[str]:
    """Return the commands of one program: a line each, loops indented, with source lines."""
    lines: list[str] = []
    for depth, command in _nested(body, 0):
        text = "  " * depth + _describe(command, params)
        lines += _two_columns(text, str(command.line), width, hanging=2 * depth + 11)
    return lines


def tcm_lines(tcm: TcmUse, width: int) -> list[str]:
    """Return how a program's TCM is made up: a line per tile, largest first."""
    lines = []
    for tile in tcm.tiles:
        times = f"{tile.copies} x " if tile.copies > 1 else ""
        text = f"{format_kib(tile.total_bytes):>11}  {times}{tile.what}"
        lines += _two_columns(text, str(tile.line), width, hanging=13)
    return lines


def timeline_lines(program: ProgramOutline, width: int) -> list[str]:
    """Return a bar per command over one program's time, grouped by engine."""
    duration = max(program.duration_ps, 1)
    room = max(width - 48, 10)
    lines = []
    for engine in Engine:
        spans = [span for span in program.spans if span.engine is engine]
        if not spans:
            continue
        busy = sum(span.busy_ps for span in spans)
        share = format_share(busy, duration)
        lines.append(f"  {engine.value:<8} busy {format_ns(busy / 1000)}, {share} of the program")
        lines += [_bar_line(span, duration, room) for span in spans]
    return lines


def _bar_line(span: CommandSpan, duration_ps: int, room: int) -> str:
    first = min(span.start_ps * room // duration_ps, room - 1)
    last = min(max(-(-span.end_ps * room // duration_ps), first + 1), room)
    bar = "." * first + "#" * (last - first) + "." * (room - last)
    times = f"{span.count:>5} x" if span.count > 1 else " " * 7
    what = f"{span.kind:<10}{_short(span.line, 16):<16}"
    return f"    {what}|{bar}|{times} {format_ns(span.busy_ps / 1000):>8}"


def _short(line: SourceLine, width: int) -> str:
    text = str(line)
    return text if len(text) < width else "..." + text[-(width - 4) :]


def _nested(body: Sequence[Command], depth: int) -> Iterator[tuple[int, Command]]:
    for command in body:
        yield depth, command
        if isinstance(command, Loop):
            yield from _nested(command.body, depth + 1)


def _describe(command: Command, params: Sequence[str]) -> str:
    engine, text = _parts(command, params)
    return f"{engine:<8} {text}"


def _parts(command: Command, params: Sequence[str]) -> tuple[str, str]:
    if isinstance(command, Loop):
        stages = f", {command.num_stages} stages" if command.num_stages > 1 else ""
        carried = ", ".join(
            f"{_tile(carried.arg)} from {_operand(carried.init, params)}, then "
            f"{_operand(carried.yielded, params)}, after it {_tile(carried.result)}"
            for carried in command.carried
        )
        if command.trip_count == 1 and not carried:
            # As what a program decides by is recorded.
            return "loop", "once; what follows waits for it"
        return "loop", f"{command.trip_count} times{stages}" + (f": {carried}" if carried else "")
    if isinstance(command, DmaRead | DmaWrite | Atomic):
        return _moved(command, params)
    if isinstance(command, Gemm):
        added = "" if command.acc is None else f" + {_operand(command.acc, params)}"
        a, b = _operand(command.a, params), _operand(command.b, params)
        return "gemm", f"{_defined(command.dst)} = {a} @ {b}{added}, {command.precision}"
    if isinstance(command, Math):
        engine = "view" if command.cost is MathClass.FREE else "math"
        inputs = ", ".join(_operand(tile, params) for tile in command.inputs)
        return engine, f"{_defined(command.dst)} = {command.op}({inputs})"
    if isinstance(command, Reduce):
        inputs = ", ".join(_operand(tile, params) for tile in command.inputs)
        results = ", ".join(_defined(dst) for dst in command.dsts)
        combine = command.combine or "its region"
        verb = f"{command.scan} scan of" if command.scan else "reduce"
        return "math", f"{results} = {verb} axis {command.axis} by {combine}({inputs})"
    if isinstance(command, Print):
        return "host", f"print {command.prefix.strip()!r}"
    assert isinstance(command, Assert)
    return "host", f"assert {_operand(command.condition, params)}, {command.message!r}"


def _moved(command: DmaRead | DmaWrite | Atomic, params: Sequence[str]) -> tuple[str, str]:
    masked = ""
    if isinstance(command.mask, Tile):
        masked = f" where {_tile(command.mask)}"
    elif isinstance(command.mask, Predicate) and not (
        command.mask.is_uniform and command.mask.is_true
    ):
        masked = " where masked"
    if isinstance(command, DmaRead):
        size = format_kib(command.dst.size_bytes)
        place = _place(command.source, params)
        return "dma_in", f"{_defined(command.dst)} = read {place} {size}{masked}"
    access = access_of(command)
    place, value = _place(access, params), _operand(command.value, params)
    size = format_kib(math.prod(access.shape) * access.dtype.itemsize)
    if isinstance(command, DmaWrite):
        return "dma_out", f"write {value} to {place} {size}{masked}"
    old = "" if command.dst is None else f"{_defined(command.dst)} = "
    return "dma_out", f"{old}atomic {command.kind} of {value} to {place} {size}{masked}"


def _place(access: Access, params: Sequence[str]) -> str:
    name = params[access.param] if 0 <= access.param < len(params) else "an address"
    return name if access.gather is None else f"{name}[{_tile(access.gather)}]"


def _tile(tile: Tile) -> str:
    return f"%{tile.slot}"


def _defined(tile: Tile) -> str:
    return f"%{tile.slot} {'x'.join([*map(str, tile.shape), tile.dtype.mlir])}"


def _operand(operand: Operand, params: Sequence[str]) -> str:
    if isinstance(operand, Tile):
        return _tile(operand)
    if isinstance(operand, Splat):
        return str(operand.value)
    if isinstance(operand, Param):
        return params[operand.index]
    if isinstance(operand, MaskTile):
        return "mask"
    return "indices" if operand.shape else "an index"


def _two_columns(text: str, right: str, width: int, hanging: int) -> list[str]:
    """Return ``text``, folded, with ``right`` at the right edge of its last line."""
    right = right if right != "unknown line" else ""
    indent = len(text) - len(text.lstrip())
    lines = textwrap.wrap(
        text.lstrip(),
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * min(indent + hanging, width // 2),
        break_long_words=True,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [""]
    if not right:
        return lines
    if len(lines[-1]) + 2 + len(right) > width:
        return [*lines, right.rjust(width)]
    return [*lines[:-1], lines[-1] + right.rjust(width - len(lines[-1]))]


def format_kib(size_bytes: int) -> str:
    """Return bytes of TCM, whose sizes are powers of two.

    >>> format_kib(512), format_kib(49152)
    ('512 B', '48 KiB')
    """
    if size_bytes < 1024:
        return f"{size_bytes} B"
    return f"{size_bytes / 1024:.1f}".removesuffix(".0") + " KiB"


_NARROWEST, _WIDEST = 60, 120
_MOST_PATHS = 8
"""The most paths shown of a launch whose control flow depends on data: each program may have its
own."""


def show_kernel(options: ShowOptions) -> int:
    """Print everything about a kernel and return the exit status."""
    width = min(max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST), _WIDEST)
    for title, lines in _sections(options, width):
        if title:
            print(f"\n{title}\n{'-' * len(title)}")
        _print(lines, highlight=title == "TTIR")
    return DONE


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
        file, kernel, options.arg or (), options.machine, options.ranks, only_first=not options.all
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
