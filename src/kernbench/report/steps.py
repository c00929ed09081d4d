"""The steps of a run: how long each takes, and what more of them would (ADR-0260)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import NotRequired, TypedDict

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kernbench.hardware import Machine
from kernbench.op_log import (
    OpLog,
    RunSteps,
    Spans,
    Template,
    build_spans,
    energy_of,
    find_steps,
)
from kernbench.report.peaks import Peaks
from kernbench.report.units import format_amount, format_ns, format_share

SHOWN_STEPS = 8
_MORE = 1000
"""Of how many more steps it is said what they take."""
_LOOK_UP = "aten.embedding"
_NS_PER_HOUR = 3600e9


class StepReport(TypedDict):
    """One step; its times are those of its ranks."""

    name: str
    time_ns: float
    """The mean of all ranks."""
    least_ns: float
    most_ns: float
    of_peak: float
    """The FLOPs that begin in it, as a share of what the devices' matrix engines could do."""
    tokens_per_s: NotRequired[float]
    """What a rank looks up in its largest embedding; left out where it looks up none."""


class StepsReport(TypedDict):
    """The steps of a run, and what one more of them takes."""

    found_by: str
    """The same in words."""
    startup_ns: float
    """What is before the first one, as a mean of all ranks."""
    steps: list[StepReport]
    steady: int
    """The number of the step that stands for others: the median of those behind the first."""
    step_j: NotRequired[float]
    """What all devices take for that step; left out for a machine that says nothing of energy."""
    step_usd: NotRequired[float]
    """What all devices cost for its time; left out where nothing says what one costs."""


def steps_of(log: OpLog, machine: Machine, ranks: int, peaks: Peaks) -> StepsReport | None:
    """Return the steps of a run that has some; see ``kernbench.op_log.find_steps``."""
    steps = find_steps(log) if log.host_ranges else None
    if steps is None:
        return None
    spans = build_spans(log)
    report: StepsReport = {
        "found_by": steps.found_by,
        "startup_ns": steps.startup.mean_ps / 1000,
        "steps": list(_steps(spans, steps, peaks)),
        "steady": steps.steady,
    }
    steady = steps.steps[steps.steady].window
    energy = energy_of(log, machine, ranks, spans, steady)
    if energy is not None:
        report["step_j"] = energy["energy_j"]
    price = machine.spec.usd_per_device_hour
    if price is not None:
        report["step_usd"] = float(price) * ranks * steady.mean_ps / 1000 / _NS_PER_HOUR
    return report


def _steps(spans: Spans, steps: RunSteps, peaks: Peaks) -> Iterator[StepReport]:
    templates = [spans.templates[number] for number in spans.template.tolist()]
    num_ranks = np.bincount(spans.instance)[spans.instance].tolist()
    for step in steps.steps:
        window = step.window
        times_ns = [window.length_ps(rank) / 1000 for rank in window.ranks]
        mine = window.holding(spans.rank, spans.start_ps)
        flops = sum(templates[entry].flops / num_ranks[entry] for entry in mine.tolist())
        could = peaks.flops_per_ns * sum(times_ns)
        report: StepReport = {
            "name": step.name,
            "time_ns": window.mean_ps / 1000,
            "least_ns": min(times_ns),
            "most_ns": max(times_ns),
            "of_peak": flops / could if could else 0.0,
        }
        of_first = mine[spans.rank[mine] == window.ranks[0]]
        tokens = _tokens(templates[entry] for entry in of_first.tolist())
        if tokens:
            report["tokens_per_s"] = tokens / window.length_ps(window.ranks[0]) * 1e12
        yield report


def _tokens(templates: Iterable[Template]) -> int:
    """Return how many rows a rank has looked up in the table of which it looked up most."""
    numbers: dict[tuple[int, ...], int] = {}
    for template in templates:
        shapes = template.launched_with.get("shapes", ())
        if template.name == _LOOK_UP and len(shapes) > 1:
            table = tuple(shapes[0])
            numbers[table] = numbers.get(table, 0) + prod(shapes[1])
    return max(numbers.values(), default=0)


def steps_table(steps_report: StepsReport) -> Table:
    """Return a line for each step, of many for the first ones."""
    steps = steps_report["steps"]
    titles = ["step", "time", "least", "most", "of peak"]
    knows_tokens = any("tokens_per_s" in step for step in steps)
    titles += ["tokens/s of a rank"] if knows_tokens else []
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title != "step" else "left", no_wrap=True)
    table.add_row(Text("before the first"), format_ns(steps_report["startup_ns"]))
    for number, step_report in enumerate(steps[:SHOWN_STEPS]):
        times = (format_ns(step_report[key]) for key in ("time_ns", "least_ns", "most_ns"))
        tokens = step_report.get("tokens_per_s")
        table.add_row(
            Text(f"{step_report['name']}{' (steady)' if number == steps_report['steady'] else ''}"),
            *times,
            f"{100 * step_report['of_peak']:.1f}%",
            "" if tokens is None else format_amount(tokens, "").strip(),
        )
    rest = steps[SHOWN_STEPS:]
    if rest:
        mean_ns = sum(report["time_ns"] for report in rest) / len(rest)
        least_ns = min(report["least_ns"] for report in rest)
        most_ns = max(report["most_ns"] for report in rest)
        table.add_row(Text(f"+ {len(rest)} more"), *map(format_ns, (mean_ns, least_ns, most_ns)))
    return table


def steps_line(steps_report: StepsReport) -> str:
    """Return what more steps take, as a line below the table."""
    steady = steps_report["steps"][steps_report["steady"]]
    times_ns = [step_report["time_ns"] for step_report in steps_report["steps"][1:]]
    spread = max(times_ns) - min(times_ns)
    parts = [format_ns(_MORE * steady["time_ns"])]
    if "step_j" in steps_report:
        parts.append(f"{format_amount(_MORE * steps_report['step_j'], 'J')}")
    if "step_usd" in steps_report:
        parts.append(f"{_MORE * steps_report['step_usd']:.3g} USD")
    spread_said = format_share(spread, steady["time_ns"])
    said = f"steps behind the first differ by {spread_said.strip()}"
    return f"{_MORE:,} more steps as {steady['name']} ({said}): {', '.join(parts)}"
