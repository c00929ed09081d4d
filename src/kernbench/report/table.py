"""The tables and the one-line verdict at the end of a run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernbench.hardware import Machine
from kernbench.op_log import OpLog
from kernbench.report.accuracy import accuracy_line, range_line
from kernbench.report.columns import WIDE_COLUMNS, Column, Numbers, Row, columns_of, shown_as
from kernbench.report.idle import IdleParts, idle_parts
from kernbench.report.peaks import Peaks, peaks_of
from kernbench.report.steps import steps_line, steps_table
from kernbench.report.summary import CollectiveReport, KernelReport, RankReport, Report
from kernbench.report.units import format_ns, format_share

LEAST_COLUMNS = 50
SHOWN_RANKS = 8
SHOWN_KERNELS = 12


def print_report(
    report: Report, peaks: Peaks, console: Console, idle: IdleParts | None = None
) -> None:
    """Print the tables of a run, as wide as the console allows, and the verdict last.

    With ``idle``, a line below the ranks says what the idle time went to.
    """
    # Narrower ones wrap lines, which is better than numbers that are cut.
    console.width = max(console.width, LEAST_COLUMNS)
    console.print(Text(f"\nOn {report['machine']}:"))
    console.print(_rank_table(report, peaks, console.width))
    if idle is not None and (text := idle_line(report, idle)):
        console.print(Text(text))
    if steps := report.get("steps"):
        console.print("", steps_table(steps), sep="\n")
        console.print(Text(steps_line(steps)))
    if report["kernels"]:
        console.print("", _kernel_table(report, peaks, console.width), sep="\n")
    if report["collectives"]:
        collectives = _rows(CollectiveReport, report["collectives"], peaks, console.width)
        console.print("", collectives, sep="\n")
    if families := report.get("accuracy"):
        console.print(Text("\n" + accuracy_line(families)))
    if time_range := report.get("range"):
        console.print(Text(range_line(time_range)))
    console.print()
    console.print(Text(verdict(report)))


def verdict(report: Report) -> str:
    """Return the run in one line: its time, the time of the simulation, where the time went."""
    ranks = report["ranks"]
    head = (
        f"{ranks} rank{'s' if ranks != 1 else ''}, "
        f"{format_ns(report['time_ns'])} simulated in {report['wall_s']:.2f} s"
    )
    total = sum(rank_report["time_ns"] for rank_report in report["per_rank"])
    if not total:
        return f"{head}; nothing ran on the devices"
    parts = {
        "compute": sum(rank_report["compute_ns"] for rank_report in report["per_rank"]),
        "exposed comm": sum(rank_report["comm_exposed_ns"] for rank_report in report["per_rank"]),
        "idle": sum(rank_report["idle_ns"] for rank_report in report["per_rank"]),
    }
    shares = ", ".join(f"{format_share(part, total)} {name}" for name, part in parts.items())
    return f"{head}; {shares}"


def idle_line(report: Report, parts: IdleParts) -> str:
    """Return the causes of idle time of all ranks, as shares of their time; empty if none."""
    total_ns = sum(rank_report["time_ns"] for rank_report in report["per_rank"])
    idle_ns = sum(rank_report["idle_ns"] for rank_report in report["per_rank"])
    if not total_ns or idle_ns < 0.005 * total_ns:
        return ""
    causes = {
        "copies and fills": parts.copies_ps / 1000,
        "Python": parts.python_ps / 1000,
        "launching": parts.launches_ps / 1000,
        "allocating": parts.allocations_ps / 1000,
        "reading": parts.reads_ps / 1000,
    }
    causes["waiting"] = idle_ns - sum(causes.values())
    shares = ", ".join(
        f"{format_share(time_ns, total_ns)} {cause}"
        for cause, time_ns in causes.items()
        if time_ns >= 0.005 * total_ns
    )
    return f"idle {format_share(idle_ns, total_ns)}: {shares}"


def _table(columns: Iterable[Column], wide: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        if column.is_name:
            table.add_column(column.title_at(wide), overflow="fold")
        else:
            table.add_column(column.title_at(wide), justify="right", no_wrap=True)
    return table


_RANK = shown_as("rank", "rank", is_name=True)


def _rank_table(report: Report, peaks: Peaks, width: int) -> Table:
    wide = width >= WIDE_COLUMNS
    columns = _shown(RankReport, width)
    table = _table([_RANK, *columns], wide)
    lines = [
        (str(rank_report["rank"]), [column.numbers(rank_report, peaks) for column in columns])
        for rank_report in report["per_rank"]
    ]

    def add(name: str, cells: Iterable[Numbers]) -> None:
        texts = [column.text(cell, wide) for column, cell in zip(columns, cells, strict=True)]
        table.add_row(name, *texts)

    hidden = len(lines) - SHOWN_RANKS // 2 if len(lines) > SHOWN_RANKS else 0
    for name, cells in lines[: len(lines) - hidden]:
        add(name, cells)
    if hidden:
        table.add_row(f"+ {hidden}")
        picks: dict[str, Callable[[Iterable[float]], float]] = {
            "min": min,
            "mean": mean,
            "max": max,
        }
        of_column = list(zip(*(cells for _, cells in lines), strict=True))
        for name, pick in picks.items():
            add(name, [tuple(map(pick, zip(*cells, strict=True))) for cells in of_column])
    return table


def _kernel_table(report: Report, peaks: Peaks, width: int) -> Table:
    table = _rows(KernelReport, report["kernels"][:SHOWN_KERNELS], peaks, width)
    rest = report["kernels"][SHOWN_KERNELS:]
    if rest:
        cells = [
            column.text(
                tuple(map(sum, zip(*(column.numbers(k, peaks) for k in rest), strict=True))), False
            )
            if column.is_summed
            else ""
            for column in _shown(KernelReport, width)[1:]
        ]
        table.add_row(f"+ {len(rest)} more", *cells)
    return table


def _rows(kind: type, rows: Sequence[Row], peaks: Peaks, width: int) -> Table:
    """Return the table of a part of the report, a line for each of its entries."""
    columns, wide = _shown(kind, width), width >= WIDE_COLUMNS
    table = _table(columns, wide)
    for row in rows:
        table.add_row(*(column.text(column.numbers(row, peaks), wide) for column in columns))
    return table


def _shown(kind: type, width: int) -> list[Column]:
    return [column for column in columns_of(kind) if width >= column.least_width]


_COLUMNS = 110
_PRE = '<pre style="line-height:1.2">{code}</pre>'


def as_html(show: Callable[[Console], None]) -> str:
    """Return what a function prints to a console, as HTML."""
    console = Console(
        file=io.StringIO(), record=True, width=_COLUMNS, highlight=False, force_jupyter=False
    )
    show(console)
    return console.export_html(inline_styles=True, code_format=_PRE)


def report_html(report: Report, machine: Machine, log: OpLog) -> str:
    """Return the tables that ``kernbench run`` prints, as HTML."""
    return as_html(
        lambda console: print_report(report, peaks_of(machine), console, idle_parts(log))
    )


class ShownReport(dict[str, Any]):
    """A report that a notebook shows as its tables."""

    def __init__(self, report: Report, machine: Machine, log: OpLog) -> None:
        super().__init__(report)
        self._of = machine, log

    def _repr_html_(self) -> str:
        return report_html(self, *self._of)  # type: ignore[arg-type]  # the same keys
