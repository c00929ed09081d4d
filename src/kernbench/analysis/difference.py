"""What changed between two runs: contributions that add up to the difference of their times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from rich.text import Text

from kernbench.analysis.attribution import OF_HOST, attribution
from kernbench.analysis.resources import bound_by
from kernbench.analysis.tables import SHOWN_LINES, is_wide, plain_table
from kernbench.report import format_amount, format_ns, pair_line

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.op_log import Template, Window
    from kernbench.saved import SavedRun

    WindowPair = tuple[Window | None, Window | None]


class Contribution(TypedDict):
    """What one kernel, collective or activity contributes to the difference of two runs."""

    name: str
    """Empty for time that has none: a host's Python, idling."""
    resource: str
    before_ns: float
    """Time of a rank, the mean of all; 0 where the first run has none of it."""
    after_ns: float
    difference_ns: float
    causes: list[str]
    """What is different about it: launches, algorithm, bytes, what it is bound by."""


class Difference(TypedDict):
    """What ``kernbench diff --json`` prints; contributions add up to the difference."""

    before: str
    after: str
    before_ns: float
    after_ns: float
    difference_ns: float
    contributions: list[Contribution]
    """The largest first, either way."""


@dataclass(slots=True)
class _Use:
    """All commands of one name in a run."""

    ranks: int
    launches: int = 0
    """How many launches all ranks made."""
    time_ps: int = 0
    flops: int = 0
    bytes: int = 0
    algorithms: set[str] = field(default_factory=set)
    limits_ps: dict[str, int] = field(default_factory=dict)

    def add(self, template: Template, num_ranks: int, time_ps: int) -> None:
        self.launches += num_ranks
        self.time_ps += time_ps
        self.flops += template.flops
        self.bytes += template.message_bytes * num_ranks or template.hbm_bytes
        if template.algorithm:
            self.algorithms.add(template.algorithm)
        if template.limits_ps:
            limit = bound_by(template.limits_ps)
            self.limits_ps[limit] = self.limits_ps.get(limit, 0) + template.duration_ps

    @property
    def per_rank(self) -> float:
        return self.launches / self.ranks

    @property
    def bound(self) -> str:
        limits = self.limits_ps
        return max(limits, key=lambda name: limits[name]) if limits else ""


def difference(before: SavedRun, after: SavedRun, within: WindowPair = (None, None)) -> Difference:
    """Return what makes the second run longer or shorter than the first, or windows of them.

    The time of each rank is attributed whole, so that the means over the ranks add up to the run
    (:func:`attribution`), and their differences to that of the runs. Things are aligned by name
    and by what holds them up.
    """
    parts = list(zip((before, after), within, strict=True))
    times = [_mean_times(*part) for part in parts]
    uses = [_uses(*part) for part in parts]
    keys = dict.fromkeys(key for time in times for key in time)
    contributions = [_contribution(key, times, uses) for key in keys]
    contributions.sort(key=lambda it: (-abs(it["difference_ns"]), it["name"], it["resource"]))
    ends = [(run.log.end_ps if part is None else part.mean_ps) / 1000 for run, part in parts]
    return {
        "before": before.path,
        "after": after.path,
        "before_ns": ends[0],
        "after_ns": ends[1],
        "difference_ns": ends[1] - ends[0],
        "contributions": contributions,
    }


_Key = tuple[str, str]


def _mean_times(run: SavedRun, within: Window | None) -> dict[_Key, float]:
    """Return the time of a rank, the mean of all, by name and resource."""
    sums: dict[_Key, int] = {}
    for spent in attribution(run.log, run.machine, run.ranks, within):
        key = (spent.name, spent.resource)
        sums[key] = sums.get(key, 0) + spent.time_ps
    return {key: time_ps / len(run.log.ranks_of(run.ranks)) / 1000 for key, time_ps in sums.items()}


def _uses(run: SavedRun, within: Window | None) -> dict[str, _Use]:
    uses: dict[str, _Use] = {}
    for instance in run.log.instances:
        if within is not None and not within.holds(instance.ranks[0], instance.starts_ps[0]):
            continue
        use = uses.setdefault(instance.template.name, _Use(len(run.log.ranks_of(run.ranks))))
        time_ps = max(instance.ends_ps) - max(instance.starts_ps)
        use.add(instance.template, len(instance.ranks), time_ps * len(instance.ranks))
    return uses


def _contribution(
    key: _Key, times: list[dict[_Key, float]], uses: list[dict[str, _Use]]
) -> Contribution:
    name, resource = key
    before_ns, after_ns = (time.get(key, 0.0) for time in times)
    old, new = (use.get(name) for use in uses)
    return {
        "name": name,
        "resource": resource,
        "before_ns": before_ns,
        "after_ns": after_ns,
        "difference_ns": after_ns - before_ns,
        "causes": list(_causes(old, new, resource)) if before_ns != after_ns else [],
    }


def _causes(old: _Use | None, new: _Use | None, resource: str) -> Iterable[str]:
    if old is None or new is None:
        if old is not new:
            yield "only in the second run" if old is None else "only in the first run"
        return
    if old.per_rank != new.per_rank:
        yield f"launches of a rank {old.per_rank:g} -> {new.per_rank:g}"
    if resource in OF_HOST.values():
        # However long a command takes, its launch is the host's.
        return
    for what, unit in (("flops", "FLOP"), ("bytes", "B")):
        launches = [getattr(use, what) / use.launches for use in (old, new)]
        if launches[0] != launches[1]:
            shown = " -> ".join(format_amount(amount, unit) for amount in launches)
            yield f"{shown} a launch"
    if old.algorithms != new.algorithms:
        yield f"algorithm {_listed(old.algorithms)} -> {_listed(new.algorithms)}"
    if old.bound != new.bound:
        yield f"bound by {old.bound or 'nothing known'} -> {new.bound or 'nothing known'}"
    if old.time_ps * new.launches != new.time_ps * old.launches:
        shown = " -> ".join(format_ns(use.time_ps / use.launches / 1000) for use in (old, new))
        yield f"{shown} each"


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def slower_by(difference: Difference) -> float:
    """Return by which share the second run is longer than the first; below 0: shorter."""
    return difference["difference_ns"] / difference["before_ns"] if difference["before_ns"] else 0.0


def print_difference(difference: Difference, console: Console) -> None:
    """Print the difference, and what it is made of, the largest contribution first."""
    console.print(Text(f"\n{difference['before']}: {format_ns(difference['before_ns'])}"))
    console.print(
        Text(f"{difference['after']}: {format_ns(difference['after_ns'])}, {_share(difference)}")
    )
    if difference["difference_ns"] and (
        unsure := pair_line("runs", difference["before_ns"], difference["after_ns"])
    ):
        console.print(Text(unsure))
    changed = [it for it in difference["contributions"] if it["difference_ns"]]
    if not changed:
        return
    titles = ("what", "held up by", "before", "after", "difference", "because")
    shown = len(titles) if is_wide(console) else titles.index("because")
    table = plain_table(*titles[:shown], left=2)
    if shown == len(titles):
        table.columns[-1].justify = "left"
    for contribution in changed[:SHOWN_LINES]:
        cells = (
            Text(contribution["name"] or "-"),
            contribution["resource"],
            format_ns(contribution["before_ns"]),
            format_ns(contribution["after_ns"]),
            signed_ns(contribution["difference_ns"]),
            Text("; ".join(contribution["causes"])),
        )
        table.add_row(*cells[:shown])
    rest = changed[SHOWN_LINES:]
    if rest:
        left_ns = sum(item["difference_ns"] for item in rest)
        table.add_row(f"({len(rest)} more)", "", "", "", signed_ns(left_ns))
    table.add_row("all", "", *(format_ns(difference[key]) for key in ("before_ns", "after_ns")),
                  signed_ns(difference["difference_ns"]))  # fmt: skip
    console.print("", table, sep="\n")


def difference_as_markdown(difference: Difference, said: Sequence[str] = ()) -> str:
    """Return the difference as Markdown, for a comment on a change.

    ``said`` is what is said of the parts of the runs, a paragraph each.
    """
    share = f"**{_share(difference)}**"
    unsure = pair_line("runs", difference["before_ns"], difference["after_ns"])
    times = " -> ".join(format_ns(difference[key]) for key in ("before_ns", "after_ns"))
    lines = [
        f"`{difference['after']}` against `{difference['before']}`: {share}, {times}"
        f"{f'; {unsure}' if difference['difference_ns'] and unsure else ''}",
        *(f"\n{name}" for name in said),
    ]
    changed = [
        contribution
        for contribution in difference["contributions"]
        if contribution["difference_ns"]
    ]
    if changed:
        titles = ("what", "held up by", "before", "after", "difference", "because")
        lines += ["", f"| {' | '.join(titles)} |", f"| --- | --- |{' ---: |' * 3} --- |"]
    for contribution in changed[:SHOWN_LINES]:
        times_of = [format_ns(contribution[key]) for key in ("before_ns", "after_ns")]
        name = f"`{contribution['name']}`" if contribution["name"] else "-"
        cells = (
            name,
            contribution["resource"],
            *times_of,
            signed_ns(contribution["difference_ns"]),
        )
        because = "; ".join(contribution["causes"])
        shown = (text.replace("|", "\\|") for text in (*cells, because))
        lines.append(f"| {' | '.join(shown)} |")
    rest = changed[SHOWN_LINES:]
    if rest:
        left_ns = sum(item["difference_ns"] for item in rest)
        lines.append(f"| {len(rest)} more | | | | {signed_ns(left_ns)} | |")
    return "\n".join(lines) + "\n"


def _share(difference: Difference) -> str:
    sign = "slower" if difference["difference_ns"] > 0 else "faster"
    return (
        f"{100 * abs(slower_by(difference)):.1f} % {sign}"
        if difference["difference_ns"]
        else "as long"
    )


def signed_ns(time_ns: float) -> str:
    """Return a time with its sign."""
    return f"{'+' if time_ns >= 0 else '-'}{format_ns(abs(time_ns))}"
