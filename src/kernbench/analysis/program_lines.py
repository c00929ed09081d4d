"""The lines of the program: what each caused on hosts and devices, added up (ADR-0172)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np
from rich.text import Text

from kernbench.analysis.critical_path import critical_path
from kernbench.analysis.lines import lines_table, short_path, shown_lines, source_line
from kernbench.analysis.tables import is_wide, ranks_said
from kernbench.errors import UsageError
from kernbench.op_log import ProgramLines, RowReader, overlap_ps
from kernbench.report import format_amount, format_ns, format_share, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.analysis.critical_path import Segment
    from kernbench.op_log import Instance, OpLog, Site, Template, Window

_NOWHERE = ("", 0)
_MOST_FILES = 6
"""Whose lines are printed; what the lines of others caused is added up."""


class Caused(TypedDict):
    """What a line caused, or all of them, on all ranks."""

    critical_path_ns: float
    """The time on the critical path, on hosts and on devices."""
    critical_path_device_ns: float
    """The part of it that is on devices."""
    host_ns: float
    """Host time but for waits, which another line may have caused."""
    wait_ns: float
    """Time in which the host waited at this line."""
    launches: int
    """Kernels, copies, fills, and a rank's calls of collectives."""
    device_ns: float
    """Sum of their times; of collectives, since the rank had come."""
    communicated_bytes: int
    """Messages of the collectives, as nccl-tests counts them, and what kernels read and write of
    other SIPs."""
    allocated_bytes: int
    """Bytes that the device's allocator gave; 0 in a run that does not record its memory."""


class CausedByLine(Caused):
    """What one line caused."""

    file: str
    line: int
    """0, of no file, is for what no line of the program is known for."""


class ProgramReport(TypedDict):
    """The lines of a program; what they caused adds up to ``all``."""

    ranks: int
    """All of the program's."""
    ran: int
    """Those that ran, for all if the run is folded; what lines caused is of them."""
    time_ns: float
    all: Caused
    """Its time on the critical path is that of the run."""
    lines: list[CausedByLine]
    """The lines, ordered by file and number."""


_NAMES = tuple(Caused.__annotations__)
_PATH, _PATH_ON_DEVICE, _HOST, _WAIT, _LAUNCHES, _DEVICE, _SENT, _ALLOCATED = range(len(_NAMES))


class _CausedSums(dict["Site", list[int]]):
    """What lines caused, in ps and bytes, in the order of the fields of :class:`Caused`."""

    def __missing__(self, site: Site) -> list[int]:
        numbers = self[site] = [0] * len(_NAMES)
        return numbers


def program_lines(log: OpLog, ranks: int, within: Window | None = None) -> ProgramReport:
    """Return what each line of the program caused, in a window if one is given.

    A command counts for the line that launched it, a rank's part of a collective for the line that
    called it. In a PyTorch program, what a backward pass does counts for the line of the forward
    operation where that is known. Time of Python counts for the line that comes to use the device
    next. Of a window are the launches and allocations that began in it, and the times and
    bytes in it.

    Raises:
        UsageError: The run does not say.
    """
    if log.program_lines is None:
        raise UsageError(
            log.about(
                "this run has no record of the program's lines; run the program again with --save "
                "or --lines, or with RuntimeContext(record_lines=True); a run that retime has made "
                "has none, as it has no program"
            )
        )
    sums = _CausedSums()
    reader = _SentBytes()
    for instance in log.instances:
        _add_command(instance, log, sums, reader, within)
    sites, of_spans = log.program_lines.sites, log.program_lines.of_spans
    for span, number in zip(log.host_spans, of_spans, strict=True):
        time_ps = overlap_ps(within, span.rank, span.start_ps, span.end_ps)
        sums[sites[number]][_WAIT if span.kind == "wait" else _HOST] += time_ps
    if log.allocations is not None:
        for allocation in log.allocations.entries:
            site = (allocation.file, allocation.line) if allocation.line else _NOWHERE
            if within is None or within.holds(allocation.rank, allocation.begin_ps):
                sums[site][_ALLOCATED] += allocation.size_bytes
    _add_path(log, sums, within)
    known: list[CausedByLine] = [
        {"file": file, "line": line, **_caused(values)}
        for (file, line), values in sorted(sums.items())
        if any(values)
    ]
    whole = [sum(column) for column in zip(*sums.values(), strict=True)] or [0] * len(_NAMES)
    return {
        "ranks": ranks,
        "ran": len(log.ranks_of(ranks)),
        "time_ns": (log.end_ps if within is None else within.mean_ps) / 1000,
        "all": _caused(whole),
        "lines": known,
    }


def _caused(values: Sequence[int]) -> Caused:
    named = {
        name: value / 1000 if name.endswith("_ns") else value
        for name, value in zip(_NAMES, values, strict=True)
    }
    return cast("Caused", named)


def _sites_of(log: OpLog, lines: ProgramLines, command: Instance) -> tuple[Site, ...]:
    """Return the line of a command for each of its ranks."""
    if command.template.kind == "collective":
        return log.sites.get(command.launch_id, (_NOWHERE,) * len(command.ranks))
    return (lines.sites[lines.of_commands.get(command.launch_id, 0)],)


class _SentBytes:
    """How many bytes a command communicates for each rank."""

    def __init__(self) -> None:
        self._reader = RowReader()
        self._known: dict[Template, int] = {}

    def of(self, template: Template) -> int:
        message_bytes = self._known.get(template)
        if message_bytes is None:
            message_bytes = template.message_bytes
            if template.kind == "kernel" and template.comm_ps:
                rows = self._reader.read(template, 1)
                moves = [self._reader.vocabulary.code(name) for name in ("dma_in", "dma_out")]
                far = (rows["peer"] >= 0) & np.isin(rows["engine"], moves)
                message_bytes = int(rows["bytes"][far].sum())
            self._known[template] = message_bytes
        return message_bytes


def _add_command(
    command: Instance, log: OpLog, sums: _CausedSums, reader: _SentBytes, within: Window | None
) -> None:
    sent = reader.of(command.template)
    spans = zip(command.ranks, command.starts_ps, command.ends_ps, strict=True)
    lines = log.program_lines
    assert lines is not None
    for site, (rank, start_ps, end_ps) in zip(_sites_of(log, lines, command), spans, strict=True):
        values = sums[site]
        values[_DEVICE] += overlap_ps(within, rank, start_ps, end_ps)
        if within is None or within.holds(rank, start_ps):
            values[_LAUNCHES] += 1
            values[_SENT] += sent


def _add_path(log: OpLog, sums: _CausedSums, within: Window | None) -> None:
    path = critical_path(log, within)
    for segment, site in zip(path, lines_of_path(log, path), strict=True):
        values = sums[site]
        values[_PATH] += segment.duration_ps
        if segment.launch:
            values[_PATH_ON_DEVICE] += segment.duration_ps


def lines_of_path(log: OpLog, path: Sequence[Segment]) -> list[Site]:
    """Return the program's line for each segment of a critical path, where the run knows it.

    For a command, the line that launched it, for a collective where the segment's rank called it.
    """
    lines = log.program_lines or ProgramLines()
    commands = {instance.launch_id: instance for instance in log.instances}
    ends: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for span, number in zip(log.host_spans, lines.of_spans, strict=False):
        if span.end_ps > span.start_ps:
            ends.setdefault((span.rank, span.kind), []).append((span.end_ps, number))
    for end in ends.values():
        end.sort()
    sites: list[Site] = []
    for segment in path:
        command = commands.get(segment.launch)
        if command is None:
            # A window may have cut its end off.
            known = ends.get((segment.rank, segment.kind), ())
            place = bisect_left(known, (segment.end_ps, 0))
            sites.append(lines.sites[known[place][1] if place < len(known) else 0])
        else:
            sites.append(_sites_of(log, lines, command)[command.ranks.index(segment.rank)])
    return sites


def print_program_lines(
    program_report: ProgramReport, sources: Mapping[str, str], console: Console
) -> None:
    """Print the program's source with what each line caused; ``sources`` are texts by path."""
    whole = program_report["all"]
    ranks = ranks_said(program_report["ranks"], program_report["ran"])
    said = f"{ranks}, {format_ns(program_report['time_ns'])}"
    console.print(Text(f"\nlines of the program: {said}; in all {', '.join(_in_words(whole))}"))
    by_file: dict[str, dict[int, CausedByLine]] = {}
    for caused_by_line in program_report["lines"]:
        by_file.setdefault(caused_by_line["file"], {})[caused_by_line["line"]] = caused_by_line
    ordered = sorted(by_file, key=lambda file: (not file, -_weight(by_file[file])))
    for file in ordered[:_MOST_FILES]:
        lines, text = by_file[file], sources.get(file, "")
        rows = [
            (_cells(number, lines.get(number), whole, console), source_line(text, number))
            for number in shown_lines(lines, text)
        ]
        console.print("", Text(short_path(file)), sep="\n")
        console.print(lines_table(console, _titles(console), rows))
    rest = [line for file in ordered[_MOST_FILES:] for line in by_file[file].values()]
    if rest:
        path_ns = sum(line["critical_path_ns"] for line in rest)
        shown = f"({len(ordered) - _MOST_FILES} more files: {format_ns(path_ns)} on the path)"
        console.print("", Text(shown), sep="\n")


def _in_words(whole: Caused) -> Iterator[str]:
    yield f"hosts {format_ns(whole['host_ns'])}"
    yield f"waits {format_ns(whole['wait_ns'])}"
    yield f"{whole['launches']} launches"
    yield f"devices {format_ns(whole['device_ns'])}"
    if whole["communicated_bytes"]:
        yield f"{format_amount(whole['communicated_bytes'], 'B')} sent"
    if whole["allocated_bytes"]:
        yield f"{format_size(whole['allocated_bytes'])} allocated"


def _weight(lines: Mapping[int, CausedByLine]) -> float:
    return sum(line["critical_path_ns"] for line in lines.values())


_COLUMNS_OF_ALL = 120
_NARROW = ("line", "on path", "host", "device")
_WIDE = ("line", "on path", "share", "host", "launches", "device")
_ALL = (
    "line", "on path", "share", "host", "waits", "launches", "device", "sent", "allocated",
)  # fmt: skip


def _titles(console: Console) -> tuple[str, ...]:
    if not is_wide(console):
        return _NARROW
    return _ALL if console.width >= _COLUMNS_OF_ALL else _WIDE


def _cells(number: int, line: CausedByLine | None, whole: Caused, console: Console) -> list[str]:
    """Return the cells of a line but its source; below 0 is what is left out."""
    if line is None:
        return ["..." if number < 0 else str(number), *[""] * (len(_titles(console)) - 1)]
    return [str(number or "-"), *_amounts(line, whole, console)]


def _amounts(line: Caused, whole: Caused, console: Console) -> Iterator[str]:
    path_ns = line["critical_path_ns"]
    cells = {
        "on path": format_ns(path_ns) if path_ns else "",
        "share": format_share(path_ns, whole["critical_path_ns"]) if path_ns else "",
        "host": _time(line["host_ns"]),
        "waits": _time(line["wait_ns"]),
        "launches": str(line["launches"] or ""),
        "device": _time(line["device_ns"]),
        "sent": _size(line["communicated_bytes"]),
        "allocated": format_size(line["allocated_bytes"]) if line["allocated_bytes"] else "",
    }
    return (cells[title] for title in _titles(console)[1:])


def _time(time_ns: float) -> str:
    return format_ns(time_ns) if time_ns else ""


def _size(size_bytes: int) -> str:
    return format_amount(size_bytes, "B") if size_bytes else ""
