"""The lines of a kernel: the time, the bytes and the operations of each, added up."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernbench.analysis.tables import is_wide, plain_table
from kernbench.errors import UnknownNameError
from kernbench.op_log import OpLog, RowReader, Template, Window, overlap_ps
from kernbench.report import format_amount, format_ns, format_share

_FAR = 3
"""Lines without time between two with time that are still shown."""


class LineReport(TypedDict):
    """One line of source, in all launches of a kernel."""

    file: str
    line: int
    engine: str
    """The engine of a PE that it keeps busy longest."""
    time_ns: float
    busy_ns: float
    """Time of engines that it keeps busy, added up over all PEs."""
    bytes: int
    flops: int


class KernelLines(TypedDict):
    """A kernel's lines; their times add up to that of the kernel."""

    kernel: str
    launches: int
    time_ns: float
    lines: list[LineReport]
    """Reports by file and line; line 0 has what no line is known for."""


@dataclass(slots=True)
class _Sums:
    weight: float = 0.0
    busy: float = 0.0
    bytes: int = 0
    flops: int = 0


def kernel_lines(log: OpLog, name: str, within: Window | None = None) -> KernelLines:
    """Return the lines of a kernel, from all its launches, or those that began in a window.

    The time of each launch is divided among its lines by how long each keeps its engines busy, all
    PEs together. Bytes are those that the line's commands move, whether from HBM or a cache.

    Raises:
        UnknownNameError: The run has launched no such kernel.
    """
    times, launches = _times_of(log, within)
    if not any(template.name == name for template in times):
        known = sorted({template.name for template in times})
        what = "run has" if within is None else "range has"
        said = f"the {what} launched no kernel {name!r}; it launched {', '.join(known) or 'none'}"
        raise UnknownNameError(log.about(said))
    return _lines_of(name, times, launches, RowReader())


def lines_of_kernels(
    log: OpLog, names: Iterable[str], within: Window | None = None
) -> list[KernelLines]:
    """Return the lines of several kernels; see :func:`kernel_lines`."""
    times, launches = _times_of(log, within)
    reader = RowReader()
    by_name: dict[str, dict[Template, int]] = {}
    for template, time_ps in times.items():
        by_name.setdefault(template.name, {})[template] = time_ps
    return [_lines_of(name, by_name[name], launches, reader) for name in names if name in by_name]


def _lines_of(
    name: str, times: Mapping[Template, int], launches: Mapping[Template, int], reader: RowReader
) -> KernelLines:
    result: dict[tuple[str, int], dict[str, _Sums]] = {}
    total_ps = num_launches = 0
    for template, time_ps in times.items():
        if template.name != name:
            continue
        total_ps += time_ps
        num_launches += launches[template]
        parts = list(_parts(template, reader))
        whole = sum(part.weight for _, _, part in parts) or 1.0
        for place, engine, part in parts:
            sums = result.setdefault(place, {}).setdefault(engine, _Sums())
            sums.weight += part.weight / whole * time_ps
            sums.busy += part.weight * launches[template]
            sums.bytes += part.bytes * launches[template]
            sums.flops += part.flops * launches[template]
    return {
        "kernel": name,
        "launches": num_launches,
        "time_ns": total_ps / 1000,
        "lines": [_line(place, engines) for place, engines in sorted(result.items())],
    }


def kernels_by_time(log: OpLog) -> list[str]:
    """Return the names of the kernels that a run has launched, the longest first."""
    sums: dict[str, int] = {}
    for template, time_ps in _times_of(log)[0].items():
        sums[template.name] = sums.get(template.name, 0) + time_ps
    return sorted(sums, key=lambda name: (-sums[name], name))


def _times_of(
    log: OpLog, within: Window | None = None
) -> tuple[dict[Template, int], dict[Template, int]]:
    """Return the time of all launches of each kernel's templates, and how many there are."""
    times: dict[Template, int] = {}
    launches: dict[Template, int] = {}
    for instance in log.instances:
        if instance.template.kind == "kernel":
            rank, start_ps = instance.ranks[0], instance.starts_ps[0]
            taken_ps = overlap_ps(within, rank, start_ps, instance.ends_ps[0])
            begins = within is None or within.holds(rank, start_ps)
            if taken_ps or begins:
                times[instance.template] = times.get(instance.template, 0) + taken_ps
                launches[instance.template] = launches.get(instance.template, 0) + begins
    return times, launches


def _parts(template: Template, reader: RowReader) -> Iterable[tuple[tuple[str, int], str, _Sums]]:
    """Yield what each line does with each engine in one launch."""
    rows, texts = reader.read(template, 1), reader.vocabulary.texts
    columns = (rows[name] for name in ("file", "line", "engine"))
    keys, where = np.unique(np.stack(list(columns)), axis=1, return_inverse=True)
    weights = rows["busy_ps"] * np.maximum(rows["pe_count"], 1).astype(float)
    sums = [
        np.bincount(where.ravel(), values, minlength=keys.shape[1])
        for values in (weights, rows["bytes"], rows["flops"])
    ]
    for (file, line, engine), weight, size, flops in zip(keys.T.tolist(), *sums, strict=True):
        yield (texts[file], line), texts[engine], _Sums(weight, 0.0, int(size), int(flops))


def _line(place: tuple[str, int], engines: Mapping[str, _Sums]) -> LineReport:
    return {
        "file": place[0],
        "line": place[1],
        "engine": max(engines, key=lambda engine: engines[engine].weight),
        "time_ns": sum(engine.weight for engine in engines.values()) / 1000,
        "busy_ns": sum(engine.busy for engine in engines.values()) / 1000,
        "bytes": sum(engine.bytes for engine in engines.values()),
        "flops": sum(engine.flops for engine in engines.values()),
    }


def print_lines(kernel_lines: KernelLines, sources: Mapping[str, str], console: Console) -> None:
    """Print a kernel's source with what each line takes; ``sources`` are texts by path."""
    launches = f"{kernel_lines['launches']} launch{'es' if kernel_lines['launches'] != 1 else ''}"
    console.print(
        Text(f"\n{kernel_lines['kernel']}: {launches}, {format_ns(kernel_lines['time_ns'])}")
    )
    by_file: dict[str, dict[int, LineReport]] = {}
    for line_report in kernel_lines["lines"]:
        by_file.setdefault(line_report["file"], {})[line_report["line"]] = line_report
    ordered = sorted(by_file, key=lambda file: -sum(x["time_ns"] for x in by_file[file].values()))
    for file in ordered:
        lines = by_file[file]
        text = sources.get(file, "")
        shown = len(_TITLES) if is_wide(console) else 4
        rows = [
            (
                _numbers(number, lines.get(number), kernel_lines["time_ns"])[:shown],
                source_line(text, number),
            )
            for number in shown_lines(lines, text)
        ]
        console.print("", Text(short_path(file)), sep="\n")
        console.print(lines_table(console, _TITLES[:shown], rows))


_TITLES = ("line", "time", "share", "mostly", "bytes", "FLOP")
_BETWEEN = 3
"""Columns of the console between those of a table."""


def lines_table(
    console: Console, titles: Sequence[str], rows: Sequence[tuple[list[str], str]]
) -> Table:
    """Return the table of a file's lines: numbers whole, the source as far as there is room.

    A row has a cell for each title, and the source.
    """
    table = plain_table(*titles, "source", left=0)
    room = console.width
    for number, column in enumerate(table.columns[:-1]):
        column.no_wrap = True
        widths = (len(cells[number]) for cells, _ in rows)
        room -= max(len(titles[number]), *widths, 0) + _BETWEEN
    source = table.columns[-1]
    source.justify, source.overflow, source.no_wrap = "left", "ellipsis", True
    source.max_width = max(room, len("source"))
    for cells, text in rows:
        table.add_row(*cells, Text(text))
    return table


def source_line(text: str, number: int) -> str:
    """Return a line of a text; empty if it has none of that number."""
    lines = text.splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""


def short_path(file: str) -> str:
    """Return a path as people look for it: from the working directory, or its last folders.

    >>> short_path("/home/me/kernels/src/matmul/tiles.py")
    '.../src/matmul/tiles.py'
    """
    if not file:
        return "without a source line"
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return f".../{'/'.join(path.parts[-3:])}" if len(path.parts) > 4 else file


def _numbers(number: int, line: LineReport | None, whole_ns: float) -> list[str]:
    """Return the cells of a line but its source; below 0 is what is left out."""
    if line is None:
        return ["..." if number < 0 else str(number), "", "", "", "", ""]
    return [
        str(number or "-"),
        format_ns(line["time_ns"]),
        format_share(line["time_ns"], whole_ns),
        line["engine"],
        format_amount(line["bytes"], "B") if line["bytes"] else "",
        format_amount(line["flops"], "") if line["flops"] else "",
    ]


def shown_lines(lines: Iterable[int], text: str) -> list[int]:
    """Return the numbers of lines to show around those that have time; -1 for what is left out.

    Whole functions where lines are near each other; ``text`` is the file.
    """
    timed = set(lines)
    wanted = set(timed)
    for first, last in _functions(text):
        if any(first <= line <= last for line in timed):
            wanted.add(first)
    shown: list[int] = []
    for line in sorted(wanted):
        if shown and line - shown[-1] > 1:
            between = range(shown[-1] + 1, line)
            shown += between if len(between) <= _FAR else [-1]
        shown.append(line)
    return shown


def _functions(text: str) -> list[tuple[int, int]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]
