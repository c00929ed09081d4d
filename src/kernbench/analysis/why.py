"""Why a run took its time, as one JSON object and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict

from rich.text import Text

from kernbench.analysis.attribution import Spent, attribution
from kernbench.analysis.critical_path import Segment, critical_path
from kernbench.analysis.tables import SHOWN_LINES, plain_table
from kernbench.report import FamilyReport, accuracy_line, format_ns, format_share

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kernbench.hardware import Machine
    from kernbench.op_log import OpLog

_DEVICE = frozenset({"kernel", "collective", "copy", "fill"})


class SpentReport(TypedDict):
    """Time of one rank; the times of a rank add up to that of the run."""

    rank: int
    resource: str
    """What held it up: an engine of kernels, ``HBM``, ``latency``, ``links``, ``other ranks``, a
    part of the host ..."""
    name: str
    """Of the kernel or collective, or what the host did."""
    detail: str
    """Which link, or which rank is waited for."""
    file: str
    line: int
    time_ns: float


class SegmentReport(TypedDict):
    """A part of the critical path; the next one begins where it ends."""

    rank: int
    kind: str
    name: str
    launch: int
    """Launch id of the op log; 0: the host."""
    start_ns: float
    end_ns: float


class Why(TypedDict):
    """What ``kernbench why --json`` prints."""

    machine: str
    ranks: int
    time_ns: float
    spent: list[SpentReport]
    critical_path: list[SegmentReport]
    accuracy: NotRequired[list[FamilyReport]]
    """The published errors of what the time is of, as in the report; left out where none are."""


def explain(
    log: OpLog, machine: Machine, ranks: int, accuracy: list[FamilyReport] | None = None
) -> Why:
    """Return where the time of each rank went, and the run's critical path.

    ``accuracy`` is the report's.
    """
    why: Why = {
        "machine": machine.name,
        "ranks": ranks,
        "time_ns": log.end_ps / 1000,
        "spent": [_spent_report(each) for each in attribution(log, machine, ranks)],
        "critical_path": [_segment_report(each) for each in critical_path(log)],
    }
    if accuracy:
        why["accuracy"] = accuracy
    return why


def _spent_report(spent: Spent) -> SpentReport:
    return {
        "rank": spent.rank,
        "resource": spent.resource,
        "name": spent.name,
        "detail": spent.detail,
        "file": spent.site[0],
        "line": spent.site[1],
        "time_ns": spent.time_ps / 1000,
    }


def _segment_report(segment: Segment) -> SegmentReport:
    return {
        "rank": segment.rank,
        "kind": segment.kind,
        "name": segment.name,
        "launch": segment.launch,
        "start_ns": segment.start_ps / 1000,
        "end_ns": segment.end_ps / 1000,
    }


def print_why(why: Why, console: Console, *, whole_path: bool = False) -> None:
    """Print the tables: resources, what used them, and the critical path, summed up or whole."""
    ranks, time_ns = why["ranks"], why["time_ns"]
    console.print(
        Text(f"\n{ranks} rank{'s' if ranks != 1 else ''} of {why['machine']}, {format_ns(time_ns)}")
    )
    console.print("", _resource_table(why), sep="\n")
    console.print("", _use_table(why), sep="\n")
    console.print("", _whole_path(why) if whole_path else _path_table(why), sep="\n")
    if accuracy := why.get("accuracy"):
        console.print("", Text(accuracy_line(accuracy)), sep="\n")


def _resource_table(why: Why) -> Table:
    """What each resource has of the ranks' time: on average, least and most."""
    by_rank: dict[str, dict[int, float]] = {}
    for each in why["spent"]:
        times = by_rank.setdefault(each["resource"], {})
        times[each["rank"]] = times.get(each["rank"], 0) + each["time_ns"]
    ranks, whole = why["ranks"], why["time_ns"]
    table = plain_table(
        "where the time of a rank went", "mean", "share", "least", "most", "of rank"
    )
    for resource, times in sorted(by_rank.items(), key=lambda each: -sum(each[1].values())):
        most = max(times, key=lambda rank: (times[rank], -rank))
        least_ns = min(times.values()) if len(times) == ranks else 0.0
        mean_ns = sum(times.values()) / ranks
        table.add_row(
            resource,
            format_ns(mean_ns),
            format_share(mean_ns, whole),
            format_ns(least_ns),
            format_ns(times[most]),
            str(most),
        )
    return table


def _use_table(why: Why) -> Table:
    """The kernels and collectives behind the resources, the longest first."""
    sums: dict[tuple[str, ...], float] = {}
    for each in why["spent"]:
        if each["name"]:
            place = _place(each["file"], each["line"])
            use = (each["name"], each["resource"], each["detail"], place)
            sums[use] = sums.get(use, 0) + each["time_ns"]
    whole = why["time_ns"] * why["ranks"]
    table = plain_table("for what", "held up by", "which", "mostly at", "of all ranks")
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    for key, time_ns in ordered[:SHOWN_LINES]:
        table.add_row(*key, f"{format_ns(time_ns)} {format_share(time_ns, whole):>4}")
    _add_rest(table, [time_ns for _, time_ns in ordered[SHOWN_LINES:]], 4)
    return table


def _path_table(why: Why) -> Table:
    """The critical path, summed up by what it is made of."""
    sums: dict[tuple[str, str], list[float]] = {}
    for each in why["critical_path"]:
        own = sums.setdefault((each["name"], _said(each["kind"])), [0, 0])
        own[0] += 1
        own[1] += each["end_ns"] - each["start_ns"]
    title = f"critical path: {len(why['critical_path'])} segments"
    table = plain_table(title, "is a", "times", "time", "share")
    longest = sorted(sums.items(), key=lambda item: -item[1][1])
    for (name, kind), (count, time_ns) in longest[:SHOWN_LINES]:
        share = format_share(time_ns, why["time_ns"])
        table.add_row(name, kind, f"{count:.0f}", format_ns(time_ns), share)
    _add_rest(table, [own[1] for _, own in longest[SHOWN_LINES:]], 3)
    return table


def _whole_path(why: Why) -> Table:
    table = plain_table("critical path", "is a", "rank", "launch", "from", "time")
    for each in why["critical_path"]:
        table.add_row(
            each["name"],
            _said(each["kind"]),
            str(each["rank"]),
            str(each["launch"] or ""),
            format_ns(each["start_ns"]),
            format_ns(each["end_ns"] - each["start_ns"]),
        )
    return table


def _said(kind: str) -> str:
    return kind if kind in _DEVICE or kind == "host" else f"host's {kind}"


def _add_rest(table: Table, times_ns: Sequence[float], blanks: int) -> None:
    if times_ns:
        empty: Iterable[str] = [""] * (blanks - 1)
        table.add_row(f"({len(times_ns)} more)", *empty, format_ns(sum(times_ns)))


def _place(file: str, line: int) -> str:
    return f"{file.rpartition('/')[2]}:{line}" if line else ""
