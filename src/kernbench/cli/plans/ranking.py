"""Plans of a model and job: every layout that fits, ranked, and the words for why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

from kernbench.cli.plans.running import LayoutPrograms, Proposals, missing
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.hardware import Machine
from kernbench.plans import (
    GIB,
    HOST,
    AllowedSizes,
    Job,
    Layout,
    ModelShape,
    TimedLayout,
    layouts,
    memory,
    node_of,
)
from kernbench.report import pair_line, peaks_of

_SLIGHT = 0.02
"""Differences below this share of the best time are not worth a word."""
_MOST_REASONS = 3


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """What a plan found."""

    model: ModelShape
    job: Job
    machine: Machine
    timed: Sequence[TimedLayout]
    """The one with least of the goal first."""
    too_large: int
    """Layouts that do not fit into memory."""
    nearest: tuple[str, float] | None
    """The plan among those that needs the fewest bytes."""
    failed: Sequence[str]
    """What the machine could not run."""
    peak_flops: float
    notes: Sequence[str] = ()
    """What its programs leave out, or why none ran."""

    def mfu(self, timed_layout: TimedLayout) -> float:
        """Return which share of the devices' peak the model's products take."""
        return timed_layout.flops / timed_layout.seconds / self.peak_flops


GOALS: Mapping[str, Callable[[TimedLayout], float | None]] = {
    "time": lambda timed_layout: timed_layout.seconds,
    "energy": lambda timed_layout: timed_layout.joules,
    "cost": lambda timed_layout: timed_layout.usd,
}
"""What may be minimized."""


def check_goal(goal: str, machine: Machine) -> None:
    """Refuse a goal that is none, or that a machine does not say enough for.

    Raises:
        UsageError: It has no price, or says nothing of energy.
        UnknownNameError: There is no such goal.
    """
    if goal not in GOALS:
        raise UnknownNameError(f"--minimize {goal}: {nearest(goal, GOALS)}")
    if goal == "energy" and machine.sip.power is None:
        raise UsageError(
            f"machine {machine.name} says nothing of energy; add sip.power to its file"
        )
    if goal == "cost" and machine.spec.usd_per_device_hour is None:
        raise UsageError(
            f"the cost of {machine.name} is not known; say it per device and hour: --price 2.50"
        )


def rank(
    model: ModelShape,
    job: Job,
    machine: Machine,
    limits: AllowedSizes,
    goal: str = "time",
    say: Callable[[str], None] = lambda _: None,
) -> Ranking:
    """Return the layouts of a model that divide and fit, the one with least of the goal first.

    ``say`` hears how far it has come.

    Raises:
        UsageError: None divides, or none fits; says the numbers.
    """
    refused: list[str] = []
    all_layouts = list(layouts(model, job, node_of(machine) or job.devices, limits, refused))
    if not all_layouts:
        reasons = (
            "; ".join(dict.fromkeys(refused)) or f"no allowed TP x PP x CP x DP is {job.devices}"
        )
        raise UsageError(f"no layout divides {model.name} over {job.devices} devices: {reasons}")
    capacity = machine.sip.hbm_bytes
    needs = [(layout, memory(model, job, layout)) for layout in all_layouts]
    fitting = [(layout, values) for layout, values in needs if sum(values.values()) <= capacity]
    large = [(layout.label, sum(values.values())) for layout, values in needs]
    large = [pair for pair in large if pair[1] > capacity]
    nearest = min(large, key=lambda pair: pair[1], default=None)
    if not fitting:
        assert nearest is not None
        raise UsageError(
            f"{model.name} does not fit on {job.devices} x {machine.name}: the smallest of "
            f"{len(large)} layouts, {nearest[0]}, needs {nearest[1] / GIB:.1f} GiB per device, "
            f"which has {capacity / GIB:.1f} GiB; take more devices, or a smaller batch or --seq"
        )
    timed, failed = Proposals(model=model, job=job, machine=machine, fitting=fitting).timed(say)
    if not timed:
        raise UsageError(f"{machine.name} cannot run {model.name}: {failed[0]}")
    timed.sort(key=lambda timed_layout: (GOALS[goal](timed_layout) or 0.0, timed_layout.seconds))
    return Ranking(
        model=model,
        job=job,
        machine=machine,
        timed=timed,
        too_large=len(large),
        nearest=nearest,
        failed=failed,
        peak_flops=peaks_of(machine).flops_per_ns * 1e9 * job.devices,
    )


def run_best(
    ranking: Ranking, count: int, programs: LayoutPrograms, goal: str, say: Callable[[str], None]
) -> Ranking:
    """Return the ranking with the programs of its best layouts run; these come first.

    Raises:
        UsageError: All of them fail.
    """
    if not count or not ranking.job.trains:
        return ranking
    if why_not := missing():
        return replace(ranking, notes=[why_not])
    best, others = ranking.timed[:count], ranking.timed[count:]
    ran: list[TimedLayout] = []
    failed: list[str] = []
    for outcome in programs.run(best, say):
        if isinstance(outcome, str):
            failed.append(outcome)
        else:
            ran.append(outcome)
    if not ran:
        raise UsageError(f"no program of the {len(best)} best layouts ran: {failed[0]}")
    ran.sort(key=lambda timed_layout: (GOALS[goal](timed_layout) or 0.0, timed_layout.seconds))
    return replace(
        ranking, timed=[*ran, *others], failed=[*ranking.failed, *failed], notes=programs.remarks()
    )


def why_best(best: TimedLayout) -> str:
    """Return where the time of the best layout goes."""
    parts = sorted(best.parts.items(), key=lambda pair: -pair[1])
    shares = [f"{part / best.seconds:.0%} {name}" for name, part in parts]
    return ", ".join(share for share in shares if not share.startswith("0%"))


def why_slower(timed_layout: TimedLayout, best: TimedLayout) -> str:
    """Return which parts make a layout slower than the best, and which it does better."""
    names = dict.fromkeys([*timed_layout.parts, *best.parts])
    apart = {name: timed_layout.parts.get(name, 0.0) - best.parts.get(name, 0.0) for name in names}
    told = [name for name in names if abs(apart[name]) >= _SLIGHT * best.seconds]
    told.sort(key=lambda name: -apart[name])
    worse = [f"{name} +{seconds(apart[name])}" for name in told if apart[name] > 0]
    better = [f"{name} -{seconds(-apart[name])}" for name in reversed(told) if apart[name] < 0]
    words = [*worse[:_MOST_REASONS], *better[: _MOST_REASONS - 1]]
    return ", ".join(words) or "much the same"


def seconds(value: float) -> str:
    """Return a time in words.

    >>> seconds(4.049), seconds(0.0421), seconds(0.00031)
    ('4.05 s', '42.1 ms', '310 us')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def remarks(ranking: Ranking) -> list[str]:
    """Return what the numbers leave out."""
    job, model = ranking.job, ranking.model
    num_run = sum(timed_layout.is_run for timed_layout in ranking.timed)
    said = []
    if num_run:
        said.append(
            f"{num_run} program{' was' if num_run == 1 else 's were'} run, host included; {HOST} "
            "is what their steps take beside the parts, which were run alone"
        )
    if num_run < len(ranking.timed):
        others = "the others are" if num_run else "times are"
        said.append(
            f"{others} proposals without the host: layers, TP collectives, attention and the "
            "optimizer run on the machine, collectives between stages and replicas alone on its "
            "links"
        )
    said += ranking.notes
    if len(ranking.timed) > 1:
        first, second = (timed_layout.seconds for timed_layout in ranking.timed[:2])
        if unsure := pair_line("plans", first, second):
            said.append(f"the first two layouts are {unsure}")
    if ranking.timed[0].joules is not None:
        said.append(
            "energy is of devices alone; they idle in the pipeline's gaps, and sends between "
            "stages take none"
        )
    if not job.trains:
        said.append("all sequences start together; a scheduler's mixing of prompts is not modeled")
    if model.experts:
        said.append("experts get equally many tokens; the router and permutations take no time")
    if model.latent_kv:
        said.append(
            "latent attention is timed as attention with keys and values of each head, though its "
            "weights and cache are counted as they are"
        )
    if ranking.failed:
        said.append(f"{len(ranking.failed)} layouts could not be run; {ranking.failed[0]}")
    return said


def as_json(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking as ``--json`` writes it."""
    return {
        "model": ranking.model.name,
        "parameters": ranking.model.parameters,
        "machine": ranking.machine.name,
        "devices": ranking.job.devices,
        "capacity_bytes": ranking.machine.sip.hbm_bytes,
        "too_large": ranking.too_large,
        "layouts": [_layout_json(ranking, timed_layout) for timed_layout in ranking.timed],
        "remarks": remarks(ranking),
    }


def _layout_json(ranking: Ranking, timed_layout: TimedLayout) -> dict[str, Any]:
    layout: Layout = timed_layout.layout
    return {
        **{name: getattr(layout, name) for name in Layout.__dataclass_fields__},
        "step_s": timed_layout.seconds,
        "is_run": timed_layout.is_run,
        "tokens_per_s": timed_layout.tokens_per_second,
        "mfu": ranking.mfu(timed_layout),
        "energy_j": timed_layout.joules,
        "cost_usd": timed_layout.usd,
        "parts_s": dict(timed_layout.parts),
        "memory_bytes": dict(timed_layout.memory),
        "collectives": timed_layout.collectives,
        "collective_bytes": timed_layout.collective_bytes,
        **{f"{name.replace(' ', '_')}_s": value for name, value in timed_layout.more.items()},
    }


_WIDE = 100
"""From so many columns on, energy and cost are shown whatever is minimized."""


def print_ranking(ranking: Ranking, console: Console, top: int, goal: str) -> None:
    """Print a ranking, the ``top`` of its layouts, and why the first is the best."""
    from rich.table import Table

    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    model, job, machine, best = ranking.model, ranking.job, ranking.machine, ranking.timed[0]
    what = f"a step of {job.batch} x {job.seq} tokens"
    if not job.trains:
        what = f"{job.batch} sequences, prompts of {job.seq} tokens, {job.new_tokens} new ones each"
    active = f" ({model.active_parameters / 1e9:.1f}B active)" if model.experts else ""
    say(
        f"{model.name}, {model.parameters / 1e9:.1f}B parameters{active}, on {job.devices} x "
        f"{machine.name}: {what}\n"
    )
    table = Table(box=None, pad_edge=False, header_style="")
    # Where there is little room its words go on in the next line; numbers stay whole.
    table.add_column("layout", overflow="fold")
    for title in ("GiB", "time", "tokens/s", "MFU"):
        table.add_column(title, justify="right", no_wrap=True)
    has_runs = any(timed_layout.is_run for timed_layout in ranking.timed)
    if has_runs:
        table.add_column("", no_wrap=True)
    per_token = {"energy": ("J/token", best.joules), "cost": ("USD/Mtoken", best.usd)}
    has_room = console.width >= _WIDE
    shows = [
        name
        for item, (name, known) in per_token.items()
        if known is not None and (has_room or item == goal)
    ]
    for name in (*shows, *best.more):
        table.add_column(name, justify="right", no_wrap=True)
    for timed_layout in ranking.timed[:top]:
        table.add_row(
            timed_layout.layout.label,
            f"{timed_layout.total_bytes / GIB:.1f}",
            seconds(timed_layout.seconds),
            f"{timed_layout.tokens_per_second:,.0f}",
            f"{ranking.mfu(timed_layout):.1%}",
            *(["run" if timed_layout.is_run else "parts"] if has_runs else []),
            *(_per_token(timed_layout, name) for name in shows),
            *(seconds(value) for value in timed_layout.more.values()),
        )
    console.print(table)
    kinds = ", ".join(f"{name} {value / GIB:.1f}" for name, value in best.memory.items())
    say(f"\nbest: {best.layout.label}")
    say(f"  time: {why_best(best)}")
    say(f"  GiB of {machine.sip.hbm_bytes / GIB:.0f}: {kinds}")
    sent = best.collective_bytes / 1e9
    say(f"  collectives of a rank: {best.collectives:,}, {sent:,.1f} GB of messages")
    # Programs are compared with programs.
    nexts = [layout for layout in ranking.timed[1:top] if layout.is_run == best.is_run]
    if nexts:
        say("why the next are slower:" if goal == "time" else "the next, beside the best:")
    for layout in nexts:
        say(f"  {layout.layout.label}: {_behind(layout, best, goal)}; {why_slower(layout, best)}")
    least = ""
    if ranking.nearest is not None:
        label, needed = ranking.nearest
        least = f"; of those {label} needs least: {needed / GIB:.1f} GiB"
    say(f"\n{len(ranking.timed)} layouts fit, {ranking.too_large} do not{least}")
    for remark in remarks(ranking):
        say(f"note: {remark}")


def _behind(timed_layout: TimedLayout, best: TimedLayout, goal: str) -> str:
    """Return how much more of the goal a layout takes than the best, and of time."""
    slower = f"{timed_layout.seconds / best.seconds - 1:+.1%}"
    if goal == "time":
        return slower
    more = (GOALS[goal](timed_layout) or 0.0) / (GOALS[goal](best) or 1.0) - 1
    return f"{goal} {more:+.1%}, time {slower}"


def _per_token(timed_layout: TimedLayout, name: str) -> str:
    if name == "J/token":
        return f"{(timed_layout.joules or 0.0) / timed_layout.tokens:.3g}"
    return f"{1e6 * (timed_layout.usd or 0.0) / timed_layout.tokens:.3g}"
