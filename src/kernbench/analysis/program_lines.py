"""The lines of the program: what each caused on hosts and devices, added up (ADR-0172)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, cast

import numpy as np
from rich.console import Console
from rich.text import Text

from kernbench.analysis.critical_path import Segment, critical_path
from kernbench.analysis.lines import lines_table, short_path, shown_lines, source_line
from kernbench.analysis.tables import is_wide, ranks_said
from kernbench.errors import UsageError
from kernbench.op_log import (
    Instance,
    OpLog,
    ProgramLines,
    RowReader,
    Site,
    Template,
    Window,
    overlap_ps,
)
from kernbench.report import format_amount, format_ns, format_share, format_size

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


class CausedSums(dict[Any, list[int]]):
    """What lines or modules caused, in ps and bytes, in the order of :class:`Caused`' fields."""

    def __missing__(self, place: Any) -> list[int]:
        numbers = self[place] = [0] * len(_NAMES)
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
    sums = caused_sums(log, within)
    known: list[CausedByLine] = [
        {"file": file, "line": line, **caused(values)}
        for (file, line), values in sorted(sums.items())
        if any(values)
    ]
    return {
        "ranks": ranks,
        "ran": len(log.ranks_of(ranks)),
        "time_ns": (log.end_ps if within is None else within.mean_ps) / 1000,
        "all": caused(added(sums.values())),
        "lines": known,
    }


def caused_sums(
    log: OpLog,
    within: Window | None,
    path: Sequence[Segment] | None = None,
    *,
    by_module: bool = False,
) -> CausedSums:
    """Return what each line caused, or each module by itself.

    ``path`` is the critical path, if it is known.

    Raises:
        UsageError: The run does not say.
    """
    lines = log.program_lines
    if lines is None:
        raise UsageError(
            log.about(
                "this run has no record of the program's lines; run the program again with --save "
                "or --lines, or with RuntimeContext(record_lines=True); a run that retime has made "
                "has none, as it has no program"
            )
        )
    sums = CausedSums()
    reader = _SentBytes()
    for instance in log.instances:
        places = _places_of(log, lines, instance, by_module=by_module)
        _add_command(instance, places, sums, reader, within)
    names: Sequence[Any] = lines.modules if by_module else lines.sites
    for span, number in zip(log.host_spans, lines.of_spans, strict=True):
        time_ps = overlap_ps(within, span.rank, span.start_ps, span.end_ps)
        sums[names[number]][_WAIT if span.kind == "wait" else _HOST] += time_ps
    if log.allocations is not None:
        for allocation in log.allocations.entries:
            site = (allocation.file, allocation.line) if allocation.line else _NOWHERE
            if within is None or within.holds(allocation.rank, allocation.begin_ps):
                place = str(allocation.module) if by_module else site
                sums[place][_ALLOCATED] += allocation.size_bytes
    path = critical_path(log, within) if path is None else path
    for segment, place in zip(path, _along(log, path, by_module=by_module), strict=True):
        values = sums[place]
        values[_PATH] += segment.duration_ps
        if segment.launch:
            values[_PATH_ON_DEVICE] += segment.duration_ps
    return sums


def added(values: Iterable[Sequence[int]]) -> list[int]:
    """Return the sums of what several lines or modules caused."""
    return [sum(column) for column in zip(*values, strict=True)] or [0] * len(_NAMES)


def caused(values: Sequence[int]) -> Caused:
    """Return sums by the names of their fields."""
    named = {
        name: value / 1000 if name.endswith("_ns") else value
        for name, value in zip(_NAMES, values, strict=True)
    }
    return cast("Caused", named)


def _places_of(
    log: OpLog, lines: ProgramLines, command: Instance, *, by_module: bool
) -> Sequence[Any]:
    """Return the line or the module of a command for each of its ranks."""
    number = lines.of_commands.get(command.launch_id, 0)
    if by_module:
        return [lines.modules[number]] * len(command.ranks)
    if command.template.kind == "collective":
        return log.sites.get(command.launch_id, (_NOWHERE,) * len(command.ranks))
    return (lines.sites[number],)


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
    command: Instance,
    places: Sequence[Any],
    sums: CausedSums,
    reader: _SentBytes,
    within: Window | None,
) -> None:
    sent = reader.of(command.template)
    spans = zip(command.ranks, command.starts_ps, command.ends_ps, strict=True)
    for place, (rank, start_ps, end_ps) in zip(places, spans, strict=True):
        values = sums[place]
        values[_DEVICE] += overlap_ps(within, rank, start_ps, end_ps)
        if within is None or within.holds(rank, start_ps):
            values[_LAUNCHES] += 1
            values[_SENT] += sent


def lines_of_path(log: OpLog, path: Sequence[Segment]) -> list[Site]:
    """Return the program's line for each segment of a critical path, where the run knows it.

    For a command, the line that launched it, for a collective where the segment's rank called it.
    """
    return _along(log, path, by_module=False)


def _along(log: OpLog, path: Sequence[Segment], *, by_module: bool) -> list[Any]:
    lines = log.program_lines or ProgramLines()
    names: Sequence[Any] = lines.modules if by_module else lines.sites
    commands = {instance.launch_id: instance for instance in log.instances}
    ends: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for span, number in zip(log.host_spans, lines.of_spans, strict=False):
        if span.end_ps > span.start_ps:
            ends.setdefault((span.rank, span.kind), []).append((span.end_ps, number))
    for end in ends.values():
        end.sort()
    places: list[Any] = []
    for segment in path:
        command = commands.get(segment.launch)
        if command is None:
            # A window may have cut its end off.
            known = ends.get((segment.rank, segment.kind), ())
            place = bisect_left(known, (segment.end_ps, 0))
            places.append(names[known[place][1] if place < len(known) else 0])
        else:
            of_ranks = _places_of(log, lines, command, by_module=by_module)
            places.append(of_ranks[command.ranks.index(segment.rank)])
    return places


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
    ordered = sorted(
        by_file,
        key=lambda file: (
            not file,
            -sum(line["critical_path_ns"] for line in by_file[file].values()),
        ),
    )
    for file in ordered[:_MOST_FILES]:
        lines, text = by_file[file], sources.get(file, "")
        rows = [
            (_cells(number, lines.get(number), whole, console), source_line(text, number))
            for number in shown_lines(lines, text)
        ]
        console.print("", Text(short_path(file)), sep="\n")
        console.print(lines_table(console, titles_of_caused(console), rows))
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


_COLUMNS_OF_ALL = 120
_NARROW = ("line", "on path", "host", "device")
_WIDE = ("line", "on path", "share", "host", "launches", "device")
_ALL = (
    "line", "on path", "share", "host", "waits", "launches", "device", "sent", "allocated",
)  # fmt: skip


def titles_of_caused(console: Console) -> tuple[str, ...]:
    """Return the titles of what lines caused, the line's first, that a console has room for."""
    if not is_wide(console):
        return _NARROW
    return _ALL if console.width >= _COLUMNS_OF_ALL else _WIDE


def _cells(number: int, line: CausedByLine | None, whole: Caused, console: Console) -> list[str]:
    """Return the cells of a line but its source; below 0 is what is left out."""
    if line is None:
        return ["..." if number < 0 else str(number), *[""] * (len(titles_of_caused(console)) - 1)]
    return [str(number or "-"), *amounts(line, whole, console)]


def amounts(line: Caused, whole: Caused, console: Console) -> Iterator[str]:
    """Return the cells of those titles but for the first."""
    path_ns = line["critical_path_ns"]
    cells = {
        "on path": format_ns(path_ns) if path_ns else "",
        "share": format_share(path_ns, whole["critical_path_ns"]) if path_ns else "",
        "host": _time(line["host_ns"]),
        "waits": _time(line["wait_ns"]),
        "launches": str(line["launches"] or ""),
        "device": _time(line["device_ns"]),
        "sent": format_amount(sent, "B") if (sent := line["communicated_bytes"]) else "",
        "allocated": format_size(line["allocated_bytes"]) if line["allocated_bytes"] else "",
    }
    return (cells[title] for title in titles_of_caused(console)[1:])


def _time(time_ns: float) -> str:
    return format_ns(time_ns) if time_ns else ""
