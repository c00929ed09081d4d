"""The tables and the one-line verdict at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernbench.report.idle import IdleParts
from kernbench.report.peaks import Peaks
from kernbench.report.summary import RankReport, Report
from kernbench.report.units import format_amount, format_ns, format_share

LEAST_COLUMNS = 50
WIDE_COLUMNS = 78
"""From this width on, tables show times beside shares."""
BOUND_COLUMNS = 60
"""From this width on, the table of kernels says what each is bound by."""
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
    wide = console.width >= WIDE_COLUMNS
    console.print(Text(f"\nOn {report['machine']}:"))
    console.print(_rank_table(report, peaks, wide))
    if idle is not None and (text := idle_line(report, idle)):
        console.print(Text(text))
    if report["kernels"]:
        console.print("", _kernel_table(report, wide, console.width >= BOUND_COLUMNS), sep="\n")
    if report["collectives"]:
        console.print("", _collective_table(report, wide), sep="\n")
    console.print()
    console.print(Text(verdict(report)))


def verdict(report: Report) -> str:
    """Return the run in one line: how long, how fast it was simulated, where the time went."""
    ranks = report["ranks"]
    head = (
        f"{ranks} rank{'s' if ranks != 1 else ''}, "
        f"{format_ns(report['time_ns'])} simulated in {report['wall_s']:.2f} s"
    )
    total = sum(each["time_ns"] for each in report["per_rank"])
    if not total:
        return f"{head}; nothing ran on the devices"
    parts = {
        "compute": sum(each["compute_ns"] for each in report["per_rank"]),
        "exposed comm": sum(each["comm_exposed_ns"] for each in report["per_rank"]),
        "idle": sum(each["idle_ns"] for each in report["per_rank"]),
    }
    shares = ", ".join(f"{format_share(part, total)} {name}" for name, part in parts.items())
    return f"{head}; {shares}"


def idle_line(report: Report, parts: IdleParts) -> str:
    """Return what the idle time of all ranks went to, as shares of their time; empty if none."""
    total_ns = sum(each["time_ns"] for each in report["per_rank"])
    idle_ns = sum(each["idle_ns"] for each in report["per_rank"])
    if not total_ns or idle_ns < 0.005 * total_ns:
        return ""
    causes = {
        "copies and fills": parts.copies_ps / 1000,
        "launching": parts.launches_ps / 1000,
        "waiting": idle_ns - (parts.copies_ps + parts.launches_ps) / 1000,
    }
    shares = ", ".join(
        f"{format_share(time_ns, total_ns)} {cause}"
        for cause, time_ns in causes.items()
        if time_ns >= 0.005 * total_ns
    )
    return f"idle {format_share(idle_ns, total_ns)}: {shares}"


def _table(columns: Sequence[str], left: int = 1) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        if index < left:
            # Only names may take more than one line; a number is never cut.
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


class _RankCells(NamedTuple):
    """The numbers of one line; shares are of the rank's own time, 0 to 1."""

    time_ns: float
    compute_ns: float
    compute: float
    exposed_ns: float
    exposed: float
    idle_ns: float
    idle: float
    hbm_bytes: float
    of_peak: float

    def texts(self, wide: bool) -> list[str]:
        def part(time_ns: float, share: float) -> str:
            percent = f"{100 * share:.0f}%"
            return f"{format_ns(time_ns)} {percent:>4}" if wide else percent

        return [
            format_ns(self.time_ns),
            part(self.compute_ns, self.compute),
            part(self.exposed_ns, self.exposed),
            part(self.idle_ns, self.idle),
            format_amount(self.hbm_bytes, "B"),
            f"{100 * self.of_peak:.1f}%",
        ]


def _cells(rank: RankReport, peaks: Peaks) -> _RankCells:
    time_ns = rank["time_ns"]
    whole = time_ns or 1
    achieved = max(
        rank["flops"] / peaks.flops_per_ns,
        rank["hbm_bytes"] / peaks.hbm_bytes_per_ns,
    )
    return _RankCells(
        time_ns=time_ns,
        compute_ns=rank["compute_ns"],
        compute=rank["compute_ns"] / whole,
        exposed_ns=rank["comm_exposed_ns"],
        exposed=rank["comm_exposed_ns"] / whole,
        idle_ns=rank["idle_ns"],
        idle=rank["idle_ns"] / whole,
        hbm_bytes=rank["hbm_bytes"],
        of_peak=achieved / whole,
    )


def _rank_table(report: Report, peaks: Peaks, wide: bool) -> Table:
    exposed = "exposed comm" if wide else "comm"
    of_peak = "of peak" if wide else "peak"
    table = _table(["rank", "time", "compute", exposed, "idle", "HBM", of_peak])
    lines = [(str(each["rank"]), _cells(each, peaks)) for each in report["per_rank"]]
    hidden = len(lines) - SHOWN_RANKS // 2 if len(lines) > SHOWN_RANKS else 0
    for name, cells in lines[: len(lines) - hidden]:
        table.add_row(name, *cells.texts(wide))
    if hidden:
        table.add_row(f"+ {hidden}")
        columns = list(zip(*(cells for _, cells in lines), strict=True))
        picks: dict[str, Callable[[Iterable[float]], float]] = {
            "min": min,
            "mean": mean,
            "max": max,
        }
        for name, pick in picks.items():
            table.add_row(name, *_RankCells(*map(pick, columns)).texts(wide))
    return table


def _kernel_table(report: Report, wide: bool, with_bound: bool) -> Table:
    rates = ["FLOP/s", "HBM B/s"] if wide else []
    table = _table(
        ["kernel", "launches", "time", *rates, "of peak", *(["bound by"] if with_bound else [])]
    )
    for each in report["kernels"][:SHOWN_KERNELS]:
        cells = [str(each["launches"]), format_ns(each["time_ns"])]
        if wide:
            cells += [_rate(each["flops"], each["time_ns"], "FLOP/s")]
            cells += [_rate(each["bytes"], each["time_ns"], "B/s")]
        cells.append(f"{100 * each['utilization']:.1f}%")
        if with_bound:
            cells.append(each["bound_by"])
        table.add_row(each["name"], *cells)
    rest = report["kernels"][SHOWN_KERNELS:]
    if rest:
        launches = str(sum(each["launches"] for each in rest))
        table.add_row(f"+ {len(rest)} more", launches, format_ns(sum(k["time_ns"] for k in rest)))
    return table


def _collective_table(report: Report, wide: bool) -> Table:
    columns = ["collective", "algorithm", "count", "bytes", "time"]
    table = _table([*columns, "algbw"] if wide else columns, left=2)
    for each in report["collectives"]:
        cells = [str(each["count"]), format_amount(each["bytes"], "B"), format_ns(each["time_ns"])]
        if wide:
            cells.append(_rate(each["bytes"], each["time_ns"], "B/s"))
        table.add_row(each["op"], each["algorithm"], *cells)
    return table


def _rate(amount: float, time_ns: float, unit: str) -> str:
    return format_amount(amount * 1e9 / time_ns, unit) if amount and time_ns else "-"
