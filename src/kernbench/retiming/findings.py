"""What holds a run up, ranked by the time that runs without it have saved (ADR-0156)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar

from rich.text import Text

from kernbench.analysis import (
    COPY,
    LINKS,
    OF_HOST,
    RANKS,
    WAIT,
    WHOLE_RUN,
    RunPart,
    Spent,
    TableColumn,
    attribution,
    fitting_table,
)
from kernbench.errors import MachineError
from kernbench.op_log import Instance, Limit, Site
from kernbench.report import (
    FamilyAccuracy,
    format_ns,
    format_share,
    pair_line,
    published_error,
    published_errors,
)
from kernbench.retiming.host_changes import (
    compiled,
    in_graphs,
    knows_lines_of_actions,
    with_half_the_operations,
    without_line,
    without_waits,
)
from kernbench.retiming.sensitivity import WhatIf

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.saved import SavedRun

    Tries = Iterator[tuple[WhatIf, list[Spent]]]
    _ToTry = Callable[[SavedRun, list[Spent], float], Tries]
    """Yields changes, with what is spent on what they change, of a part that takes so many ps."""

K = TypeVar("K", int, str, tuple[str, int])
_MOST_KERNELS = 6
"""Kernels of which each is tried without time, those that ranks spend most time on."""
_MOST_LINES = 3
"""The most lines of the program of which each is tried without its hosts' time."""
_LEAST_SHARE = 0.001
"""The least share of the run: what has less is not tried, and what saves less is no finding."""
_LEAST_OF_HOSTS = 0.1
"""The least share of the time that hosts have, for what would shorten it to be tried unasked."""
_MOST_NUMBERS = 400_000
"""And the most numbers of actions of all ranks, four each: to do them again takes seconds."""
_SHOWN_LAUNCHES = 3

MACHINE = (
    WhatIf(
        "HBM twice as fast",
        frozenset({Limit.HBM.value, "shared HBM", "shared HBM, power"}),
        settings=("sip.cube.hbm_bandwidth_gbps=2x",),
    ),
    WhatIf("links twice as fast", frozenset({LINKS}), settings=("links.bandwidth_gbps=2x",)),
    WhatIf(
        "host link twice as fast", frozenset({COPY}), settings=("sip.host_link.bandwidth_gbps=2x",)
    ),
    WhatIf(
        "hosts take no time",
        frozenset({*OF_HOST.values(), Limit.LAUNCH.value}),
        changes={"host": None, "sip.host_launch_us": 0},
    ),
    WhatIf(
        "no straggler",
        frozenset({RANKS, LINKS}),
        changes={
            "scenario.slow_devices": {},
            "scenario.slow_links": {},
            "scenario.flapping": {},
            "sip_overrides": {},
        },
    ),
    WhatIf(
        "no jitter",
        frozenset({RANKS, LINKS, OF_HOST["interruption"]}),
        changes={"scenario.host_jitter": {}, "scenario.collective_jitter": {}},
    ),
    WhatIf("collectives overlapped", frozenset({LINKS}), free_collectives=True),
    WhatIf("no rank waits", frozenset({RANKS}), nobody_waits=True),
)
"""What is tried where ranks spend time on it."""

_OF_HOSTS = frozenset({*OF_HOST.values(), WAIT})
_LAUNCHING = frozenset(OF_HOST[kind] for kind in ("launch", "dispatch", "python"))
HOSTS = (
    WhatIf("a host twice as fast", frozenset(OF_HOST.values()), settings=("host.slowdown=0.5x",)),
    WhatIf(
        "Python takes no time", frozenset({OF_HOST["python"]}), settings=("host.python_call_us=0",)
    ),
    WhatIf(
        "no memory from the driver",
        frozenset({OF_HOST["allocate"]}),
        settings=("host.cuda_malloc_us=0",),
    ),
    WhatIf("launches in CUDA graphs", _LAUNCHING, acts=in_graphs),
    WhatIf("launches by torch.compile", _LAUNCHING, acts=compiled),
    WhatIf("half as many operations", _LAUNCHING, acts=with_half_the_operations),
    WhatIf("no reads and synchronizations", frozenset({OF_HOST["read"], WAIT}), acts=without_waits),
)
"""What is tried where ranks of PyTorch programs spend time on their hosts."""


class Finding(TypedDict):
    """Something that holds the run up, and what a run without it has shown."""

    what: str
    """What was tried."""
    detail: str
    """How often that was something else then, or the source line; empty where neither is said."""
    gain_ns: float
    """How much sooner the run has ended then."""
    time_ns: float
    """How long that run has taken."""
    spent_ns: float
    """What a rank has spent on it on average; a gain is less where others take its place."""
    held_up_by: str
    """The resource that has most of this."""
    name: str
    """The kernel or collective that has most of it."""
    rank: int
    """The rank that has spent most on it."""
    file: str
    line: int
    launches: list[int]
    """Rows of the op log: the longest launches of ``name`` on that rank."""
    errors: list[FamilyAccuracy]


class RankedFindings(TypedDict):
    """The findings of a run, those with the largest gain first."""

    program: str
    machine: str
    ranks: int
    time_ns: float
    part: NotRequired[str]
    """The part of the run that all of it is about, in words; left out for the whole run."""
    tried: int
    """How many changes were tried."""
    findings: list[Finding]


def findings(saved: SavedRun, part: RunPart = WHOLE_RUN) -> RankedFindings:
    """Return what holds a saved run or a part of it up, by doing it again with each change.

    Raises:
        UsageError: The run cannot be retimed; says why.
    """
    return _ranked(saved, part, _to_try)


def host_findings(saved: SavedRun, part: RunPart = WHOLE_RUN) -> RankedFindings | None:
    """Return what would shorten the time of the hosts of a PyTorch program, by doing it again.

    None where they have little of the time, where that cannot be tried, or takes long.
    """
    actions = saved.actions
    if (
        actions is None
        or "pytorch" not in actions.described
        or actions.described["refused"]
        or sum(len(actor.values) for actor in actions.actors) > _MOST_NUMBERS
    ):
        return None
    spent = attribution(saved.log, saved.machine, saved.ranks, part.window)
    of_hosts = _total([item for item in spent if item.resource in OF_HOST.values()])
    if of_hosts < _LEAST_OF_HOSTS * _total(spent):
        return None
    return _ranked(saved, part, _changes_of_hosts)


def _changes_of_hosts(saved: SavedRun, spent: list[Spent], end_ps: float) -> Tries:
    least_ps = _LEAST_SHARE * end_ps * _num_run(saved)
    tries = _hosts_to_try(saved, [item for item in spent if item.resource in _OF_HOSTS], least_ps)
    return (pair for pair in tries if pair[0] in HOSTS)


def _ranked(saved: SavedRun, part: RunPart, to_try: _ToTry) -> RankedFindings:
    log = saved.log
    end_ps = part.time_ps(log)
    spent = attribution(log, saved.machine, saved.ranks, part.window)
    findings: list[Finding] = []
    tried = 0
    for what, parts in to_try(saved, spent, end_ps):
        try:
            done = what.run(saved)
        except MachineError:
            # Not every machine has the key.
            continue
        tried += 1
        gain_ps = end_ps - part.time_ps(done.log)
        if gain_ps >= _LEAST_SHARE * end_ps:
            finding = _finding(saved, what, parts, done.detail, part)
            times: Any = {"gain_ns": gain_ps / 1000, "time_ns": (end_ps - gain_ps) / 1000}
            findings.append({**finding, **times})
    findings.sort(key=lambda item: -item["gain_ns"])
    ranked: RankedFindings = {
        "program": saved.program,
        "machine": saved.machine.name,
        "ranks": saved.ranks,
        "time_ns": end_ps / 1000,
        "tried": tried,
        "findings": findings,
    }
    if part.window is not None:
        ranked["part"] = part.said
    return ranked


def _to_try(saved: SavedRun, spent: list[Spent], end_ps: float) -> Tries:
    """Yield changes that may save time, with what is spent on what they change."""
    least_ps = _LEAST_SHARE * end_ps * _num_run(saved)
    kernels = {
        instance.template.name
        for instance in saved.log.instances
        if instance.template.kind == "kernel"
    }
    of_kernels: dict[str, list[Spent]] = {}
    for entry in spent:
        if entry.name in kernels and entry.resource not in OF_HOST.values():
            of_kernels.setdefault(entry.name, []).append(entry)
    longest = sorted(of_kernels.items(), key=lambda item: -_total(item[1]))[:_MOST_KERNELS]
    tries = [(WhatIf(f"{name} takes no time", free_kernel=name), own) for name, own in longest]
    tries += [
        (what, [item for item in spent if item.resource in what.resources]) for what in MACHINE
    ]
    for what, own in tries:
        if _total(own) >= least_ps and what.applies(saved.machine):
            yield what, own
    if saved.actions is not None and "pytorch" in saved.actions.described:
        of_hosts = [item for item in spent if item.resource in _OF_HOSTS]
        yield from _hosts_to_try(saved, of_hosts, least_ps)


def _hosts_to_try(saved: SavedRun, spent: list[Spent], least_ps: float) -> Tries:
    """Yield changes of hosts that run ahead, with what is spent on what they change."""
    log = saved.log
    # Waits for a collective are waits for other ranks.
    collectives = {
        instance.template.name
        for instance in log.instances
        if instance.template.kind == "collective"
    }
    spent = [item for item in spent if item.resource != WAIT or item.name not in collectives]
    for what in HOSTS:
        own = [item for item in spent if item.resource in what.resources]
        # What a wait costs is what comes late after it.
        if own and (what.acts is not None or _total(own) >= least_ps):
            yield what, own
    if saved.machine.spec.host is None or not knows_lines_of_actions(saved):
        return
    of_lines: dict[Site, list[Spent]] = {}
    for entry in spent:
        if entry.site[1] and entry.resource != WAIT:
            of_lines.setdefault(entry.site, []).append(entry)
    longest = sorted(of_lines.items(), key=lambda item: -_total(item[1]))[:_MOST_LINES]
    for site, own in longest:
        if _total(own) >= least_ps:
            place = f"{site[0].rpartition('/')[2]}:{site[1]}"
            yield WhatIf(f"no host time at {place}", acts=partial(without_line, site=site)), own


def _num_run(saved: SavedRun) -> int:
    """Return how many ranks ran; of a folded run these are not all."""
    return len(saved.log.ranks_of(saved.ranks))


def _total(spent: list[Spent]) -> int:
    return sum(item.time_ps for item in spent)


def _finding(
    saved: SavedRun, what: WhatIf, spent: list[Spent], detail: str, part: RunPart
) -> Finding:
    rank = _longest(spent, lambda item: item.rank)
    site = _longest([entry for entry in spent if entry.site[1]] or spent, lambda entry: entry.site)
    there = [element for element in spent if element.site == site]
    name = what.free_kernel or _longest(
        [spent for spent in there if spent.name] or there, lambda element: element.name
    )
    most = max(
        (spent for spent in there if spent.name == name), key=lambda one: (one.time_ps, -one.rank)
    )
    launches = [
        instance
        for instance in saved.log.instances
        if instance.template.name == name
        and rank in instance.ranks
        and (part.window is None or part.window.holds(rank, min(instance.starts_ps)))
    ]
    launches.sort(key=lambda one: (min(one.starts_ps) - max(one.ends_ps), one.launch_id))
    return {
        "what": what.what,
        "detail": detail,
        "gain_ns": 0.0,
        "time_ns": 0.0,
        "spent_ns": _total(spent) / _num_run(saved) / 1000,
        "held_up_by": most.resource,
        "name": name,
        "rank": rank,
        "file": most.site[0],
        "line": most.site[1],
        "launches": [launch.launch_id for launch in launches[:_SHOWN_LAUNCHES]],
        "errors": _errors(saved, launches, most.resource),
    }


def _longest(spent: list[Spent], key: Callable[[Spent], K]) -> K:
    """Return that of which most is spent, the least one of several."""
    sums: dict[K, int] = {}
    for item in spent:
        sums[key(item)] = sums.get(key(item), 0) + item.time_ps
    return min(sums, key=lambda entry: (-sums[entry], entry))


def _errors(saved: SavedRun, launches: list[Instance], resource: str) -> list[FamilyAccuracy]:
    """Return the published errors of the families that a finding is about."""
    machine = saved.machine.spec
    if not (machine.devices or machine.name in published_errors()):
        return []
    families = dict.fromkeys(item.template.family for item in launches if item.template.family)
    if resource in (LINKS, RANKS):
        families = {"collectives": None}
    elif resource in OF_HOST.values():
        families = {"host": None}
    return [published_error(machine.name, family) for family in families]


_COLUMNS = (
    TableColumn("finding", is_number=False),
    TableColumn("gain"),
    TableColumn("of run"),
    TableColumn("mostly", is_number=False, only_wide=True),
    TableColumn("at", is_number=False, only_wide=True),
    TableColumn("rank"),
    TableColumn("row"),
)
_MORE = ("with", "held up by", "rows", "published error")
"""What Markdown has besides."""


def print_findings(ranked_findings: RankedFindings, console: Console) -> None:
    """Print the findings as a table."""
    console.print(Text(f"\n{_head(ranked_findings)}"))
    if not ranked_findings["findings"]:
        console.print(Text(f"\n{_NOTHING}"))
        return
    rows = (_cells(finding, ranked_findings["time_ns"]) for finding in ranked_findings["findings"])
    console.print("", fitting_table(console, _COLUMNS, rows), sep="\n")
    errors = dict.fromkeys(
        _error(known) for finding in ranked_findings["findings"] for known in finding["errors"]
    )
    if errors:
        console.print(Text(f"\npublished errors of what this is about: {', '.join(errors)}"))
    best_ns = ranked_findings["time_ns"] - ranked_findings["findings"][0]["gain_ns"]
    if unsure := pair_line("runs", ranked_findings["time_ns"], best_ns):
        console.print(Text(f"\nthe run with the first change is {unsure}"))
    console.print(Text(f"\n{_ABOUT}"))


_CHANGES = (
    TableColumn("what would shorten hosts' time", is_number=False),
    TableColumn("gain"),
    TableColumn("share"),
    TableColumn("with", is_number=False, only_wide=True),
)


def print_host_findings(ranked_findings: RankedFindings, console: Console) -> None:
    """Print what would shorten the time of hosts, as a table below why a run took its time."""
    rows = (
        [
            finding["what"],
            format_ns(finding["gain_ns"]),
            format_share(finding["gain_ns"], ranked_findings["time_ns"]),
            finding["detail"],
        ]
        for finding in ranked_findings["findings"]
    )
    if ranked_findings["findings"]:
        console.print("", fitting_table(console, _CHANGES, rows), sep="\n")


def as_markdown(ranked_findings: RankedFindings) -> str:
    """Return the findings as a table in Markdown."""
    lines = [_head(ranked_findings), ""]
    if ranked_findings["findings"]:
        titles = [*(column.title for column in _COLUMNS), *_MORE]
        lines.append(f"| {' | '.join(titles)} |")
        lines.append(f"|{' --- |' * len(titles)}")
        for finding in ranked_findings["findings"]:
            more = (
                finding["detail"],
                finding["held_up_by"],
                ", ".join(map(str, finding["launches"])),
                ", ".join(map(_error, finding["errors"])),
            )
            cells = (
                text.replace("|", "\\|")
                for text in (*_cells(finding, ranked_findings["time_ns"]), *more)
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", _ABOUT]
    else:
        lines.append(_NOTHING)
    return "\n".join(lines) + "\n"


_NOTHING = "nothing that was tried alone makes the run faster"
_ABOUT = (
    "each gain is that of a run with this change alone; gains do not add up where one change "
    "leaves another its place"
)


def _head(ranked_findings: RankedFindings) -> str:
    ranks = ranked_findings["ranks"]
    of_part = f" of {ranked_findings['part']}" if "part" in ranked_findings else ""
    return (
        f"{ranks} rank{'s' if ranks != 1 else ''} of {ranked_findings['machine']}, "
        f"{format_ns(ranked_findings['time_ns'])}{of_part}; "
        f"{ranked_findings['tried']} changes tried"
    )


def _cells(finding: Finding, whole_ns: float) -> list[str]:
    place = finding["file"].rpartition("/")[2]
    return [
        finding["what"],
        format_ns(finding["gain_ns"]),
        format_share(finding["gain_ns"], whole_ns),
        finding["name"],
        f"{place}:{finding['line']}" if place else "",
        str(finding["rank"]),
        str(finding["launches"][0]) if finding["launches"] else "",
    ]


def _error(known: FamilyAccuracy) -> str:
    family, error = known["family"], known["error_percent"]
    if error is not None:
        return f"{family} {error:.1f} %"
    if "elsewhere_percent" in known:
        return f"{family} {known['elsewhere_percent']:.1f} % on other machines only"
    if "programs_percent" in known:
        return f"{family} {known['programs_percent']:.1f} % in whole programs only"
    return f"{family} not measured"
