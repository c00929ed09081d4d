"""Why a run took its time, as one JSON object and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NotRequired, TypedDict

from rich.console import Console
from rich.text import Text

from kernbench.analysis.attribution import RANKS, Spent, attribution
from kernbench.analysis.critical_path import critical_path
from kernbench.analysis.program_lines import lines_of_path
from kernbench.analysis.ranges import ALL, STARTUP, RunPart
from kernbench.analysis.tables import SHOWN_LINES, TableColumn, fitting_table, ranks_said
from kernbench.hardware import Machine
from kernbench.op_log import OpLog, Window
from kernbench.report import FamilyReport, accuracy_line, format_ns, format_share

_LEAST_WAIT = 0.01
"""The least share of all ranks' time: with less waiting for each other there is no straggler."""
_DEVICE = frozenset({"kernel", "collective", "copy", "fill"})


class SpentReport(TypedDict):
    """Time of one rank; the times of a rank add up to that of the run."""

    rank: int
    resource: str
    """What held it up: an engine of kernels, ``HBM``, ``latency``, ``links``, ``other ranks``, a
    part of the host ..."""
    name: str
    """The kernel or collective, or what the host did."""
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
    file: str
    line: int
    """The program's line: of a command the one that launched it; 0 where the run does not say."""
    start_ns: float
    end_ns: float


class StragglerReport(TypedDict):
    """A rank that comes last to most of what others wait for."""

    rank: int
    waited_ns: float
    """What the others have waited for it, all together."""
    of_waiting: float
    """Share of all that ranks have waited for each other."""


class PartOfRun(TypedDict):
    """Which part of a run all of it is about."""

    name: str
    said: str
    """What is said of it, with its time."""


class Startup(TypedDict):
    """What is before the first step of a run."""

    time_ns: float
    """The mean of all ranks, as are those by resource, which add up to it."""
    resources: dict[str, float]


class Why(TypedDict):
    """What ``kernbench why --json`` prints."""

    machine: str
    ranks: int
    """All of the program's."""
    ran: int
    """Those that ran, for all if the run is folded; ``spent`` and ``critical_path`` are of them."""
    time_ns: float
    """The time of the run, or of the part of it, as a mean of all ranks."""
    part: NotRequired[PartOfRun]
    """The part of the run that all of this is about; left out where it is about all of it."""
    startup: NotRequired[Startup]
    """Left out where the part is not a step that was chosen because nothing else was asked for."""
    spent: list[SpentReport]
    critical_path: list[SegmentReport]
    straggler: NotRequired[StragglerReport]
    """Whom the others wait for, if that is mostly one rank."""
    accuracy: NotRequired[list[FamilyReport]]
    """The published errors of what the time is of, as in the report; left out where none are."""


def explain(
    log: OpLog,
    machine: Machine,
    ranks: int,
    accuracy: list[FamilyReport] | None = None,
    part: RunPart | None = None,
) -> Why:
    """Return where the time of each rank went, and the run's critical path.

    ``accuracy`` is the report's. With a ``part``, all of it is of that part of the run.
    """
    within = None if part is None else part.window
    path = critical_path(log, within)
    sites = lines_of_path(log, path)
    why: Why = {
        "machine": machine.name,
        "ranks": ranks,
        "ran": len(log.ranks_of(ranks)),
        "time_ns": (log.end_ps if within is None else within.mean_ps) / 1000,
        "spent": [_spent_report(spent) for spent in attribution(log, machine, ranks, within)],
        "critical_path": [
            {
                "rank": segment.rank,
                "kind": segment.kind,
                "name": segment.name,
                "launch": segment.launch,
                "file": site[0],
                "line": site[1],
                "start_ns": segment.start_ps / 1000,
                "end_ns": segment.end_ps / 1000,
            }
            for segment, site in zip(path, sites, strict=True)
        ],
    }
    straggler = _straggler(why["spent"], why["time_ns"] * why["ran"])
    if straggler is not None:
        why["straggler"] = straggler
    if part is not None and within is not None:
        why["part"] = {"name": part.name, "said": part.said}
        if part.startup is not None:
            why["startup"] = _startup(attribution(log, machine, ranks, part.startup), part.startup)
    elif accuracy:
        # The shares are those of the run.
        why["accuracy"] = accuracy
    return why


def _startup(spent: Sequence[Spent], window: Window) -> Startup:
    sums: dict[str, float] = {}
    for item in spent:
        time_ns = item.time_ps / 1000 / len(window.ranks)
        sums[item.resource] = sums.get(item.resource, 0) + time_ns
    return {"time_ns": window.mean_ps / 1000, "resources": sums}


def _straggler(spent: Sequence[SpentReport], whole_ns: float) -> StragglerReport | None:
    """Return the rank that most waiting is for; None where it is little, or for many."""
    waited: dict[str, float] = {}
    for report in spent:
        if report["resource"] == RANKS:
            waited[report["detail"]] = waited.get(report["detail"], 0) + report["time_ns"]
    total_ns = sum(waited.values())
    if total_ns < _LEAST_WAIT * whole_ns or not waited:
        return None
    who = max(waited, key=lambda name: waited[name])
    if waited[who] <= total_ns / 2:
        return None
    rank = int(who.removeprefix("rank "))
    return {"rank": rank, "waited_ns": waited[who], "of_waiting": waited[who] / total_ns}


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


def print_why(why: Why, console: Console, *, whole_path: bool = False) -> None:
    """Print the tables: resources, what used them, and the critical path, summed up or whole."""
    ranks, ran, time_ns = why["ranks"], why["ran"], why["time_ns"]
    said = ranks_said(ranks, ran, why["machine"])
    console.print(Text(f"\n{said}, {format_ns(time_ns)}"))
    if part := why.get("part"):
        console.print(Text(part["said"]))
    if startup := why.get("startup"):
        before = f"{format_ns(startup['time_ns'])} before the first step"
        console.print(Text(f"{before}: --range {STARTUP}; the whole run: --range {ALL}"))
    path = (_PATH, _whole_path(why)) if whole_path else (_path_columns(why), _path_sums(why))
    beside = (TableColumn("in start-up"),) if "startup" in why else ()
    resources = ((*_RESOURCES, *beside), _resources(why))
    for columns, rows in (resources, (_USES, _uses(why)), path):
        console.print("", fitting_table(console, columns, rows), sep="\n")
    if late := why.get("straggler"):
        share = format_share(late["waited_ns"], why["time_ns"] * ran)
        line = (
            f"straggler: rank {late['rank']}; waiting for it is {share.strip()} of all ranks' "
            f"time, {late['of_waiting']:.0%} of all waiting"
        )
        console.print("", Text(line), sep="\n")
    if accuracy := why.get("accuracy"):
        console.print("", Text(accuracy_line(accuracy)), sep="\n")


_RESOURCES = (
    TableColumn("where the time of a rank went", is_number=False),
    TableColumn("mean"),
    TableColumn("share"),
    TableColumn("least", only_wide=True),
    TableColumn("most"),
    TableColumn("of rank", only_wide=True),
)


def _resources(why: Why) -> Iterator[list[str]]:
    """What each resource has of the ranks' time: on average, least and most."""
    by_rank: dict[str, dict[int, float]] = {}
    for spent_report in why["spent"]:
        times = by_rank.setdefault(spent_report["resource"], {})
        times[spent_report["rank"]] = times.get(spent_report["rank"], 0) + spent_report["time_ns"]
    ranks, whole = why["ran"], why["time_ns"]
    startup = why.get("startup")
    before = {} if startup is None else dict(startup["resources"])
    for resource, times in sorted(by_rank.items(), key=lambda pair: -sum(pair[1].values())):
        most = max(times, key=lambda rank: (times[rank], -rank))
        least_ns = min(times.values()) if len(times) == ranks else 0.0
        mean_ns = sum(times.values()) / ranks
        yield [
            resource,
            format_ns(mean_ns),
            format_share(mean_ns, whole),
            format_ns(least_ns),
            format_ns(times[most]),
            str(most),
            format_ns(before.pop(resource, 0)),
        ]
    for resource, time_ns in sorted(before.items(), key=lambda item: -item[1]):
        yield [resource, "", "", "", "", "", format_ns(time_ns)]


_USES = (
    TableColumn("for what", is_number=False),
    TableColumn("held up by", is_number=False),
    TableColumn("which", is_number=False, only_wide=True),
    TableColumn("mostly at", is_number=False, only_wide=True),
    TableColumn("of all ranks"),
)


def _uses(why: Why) -> Iterator[list[str]]:
    """What is behind the resources, the longest first: all of it adds up to the time of ranks."""
    sums: dict[tuple[str, ...], float] = {}
    for report in why["spent"]:
        place = _place(report["file"], report["line"])
        use = (report["name"] or report["resource"], report["resource"], report["detail"], place)
        sums[use] = sums.get(use, 0) + report["time_ns"]
    whole = why["time_ns"] * why["ran"]
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    for key, time_ns in ordered[:SHOWN_LINES]:
        yield [*key, f"{format_ns(time_ns)} {format_share(time_ns, whole):>4}"]
    yield from _rest([time_ns for _, time_ns in ordered[SHOWN_LINES:]], 3, 0)


def _path_columns(why: Why) -> tuple[TableColumn, ...]:
    return (
        TableColumn(f"critical path: {len(why['critical_path'])} segments", is_number=False),
        TableColumn("is a", is_number=False),
        TableColumn("times", only_wide=True),
        TableColumn("time"),
        TableColumn("share"),
    )


def _path_sums(why: Why) -> Iterator[list[str]]:
    """The critical path, summed up by what it is made of."""
    sums: dict[tuple[str, str], list[float]] = {}
    for segment_report in why["critical_path"]:
        own = sums.setdefault((segment_report["name"], _said(segment_report["kind"])), [0, 0])
        own[0] += 1
        own[1] += segment_report["end_ns"] - segment_report["start_ns"]
    longest = sorted(sums.items(), key=lambda item: -item[1][1])
    # Of a step, ranks may have a little more or less than their mean.
    whole_ns = sum(own[1] for own in sums.values())
    for (name, kind), (count, time_ns) in longest[:SHOWN_LINES]:
        share = format_share(time_ns, whole_ns)
        yield [name, kind, f"{count:.0f}", format_ns(time_ns), share]
    yield from _rest([own[1] for _, own in longest[SHOWN_LINES:]], 2, 1)


_PATH = (
    TableColumn("critical path", is_number=False),
    TableColumn("is a", is_number=False),
    TableColumn("rank"),
    TableColumn("row", only_wide=True),
    TableColumn("at", is_number=False, only_wide=True),
    TableColumn("from"),
    TableColumn("time"),
)


def _whole_path(why: Why) -> Iterator[list[str]]:
    for segment_report in why["critical_path"]:
        yield [
            segment_report["name"],
            _said(segment_report["kind"]),
            str(segment_report["rank"]),
            str(segment_report["launch"] or ""),
            _place(segment_report["file"], segment_report["line"]),
            format_ns(segment_report["start_ns"]),
            format_ns(segment_report["end_ns"] - segment_report["start_ns"]),
        ]


def _rest(times_ns: Sequence[float], before: int, behind: int) -> Iterator[list[str]]:
    """Yield the line that sums up what is not shown, with empty cells around its time."""
    if times_ns:
        total = format_ns(sum(times_ns))
        yield [f"({len(times_ns)} more)", *[""] * before, total, *[""] * behind]


def _said(kind: str) -> str:
    return kind if kind in _DEVICE or kind == "host" else f"host's {kind}"


def _place(file: str, line: int) -> str:
    return f"{file.rpartition('/')[2]}:{line}" if line else ""
