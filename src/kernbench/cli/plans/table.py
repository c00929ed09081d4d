"""A ranking of layouts as tables and words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kernbench.cli.plans.ranking import GOALS, Ranking, remarks, seconds, why_best, why_slower
from kernbench.plans import GIB, TimedLayout

if TYPE_CHECKING:
    from rich.console import Console

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
