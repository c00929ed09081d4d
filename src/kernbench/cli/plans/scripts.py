"""Plans of a program of one's own: the splits that its own options can express, each run."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Console

from kernbench.cli.plans.ranking import seconds
from kernbench.cli.programs.bench_file import find_bench
from kernbench.cli.programs.kinds import Kind, kind_of
from kernbench.cli.sweeps.points import Point, Settings, SweptFile
from kernbench.cli.sweeps.running import Limits, Progress, results_of
from kernbench.cli.sweeps.store import ResultFolder
from kernbench.cli.sweeps.table import flat
from kernbench.errors import UsageError
from kernbench.plans import GIB, AllowedSizes

_SIZE = r"(_parallel(ism)?)?(_world)?(_(size|degree|dim))?"
_NAMES = {
    "tp": rf"(tp|tensor(_model)?(?=_parallel)|model(?=_parallel)){_SIZE}",
    "pp": rf"(pp|pipeline(_model)?(?=_parallel)|pipe(?=_parallel)){_SIZE}",
    "cp": rf"(cp|(context|sequence|ulysses)(?=_parallel)){_SIZE}",
    "dp": rf"(dp|fsdp|ddp|hsdp|data(?=_parallel)){_SIZE}(_(shard|replicate|replicas))?{_SIZE}",
    "ep": rf"(ep|expert(_model)?(?=_parallel)){_SIZE}",
}
"""What options are called by which programs take a size of each kind of parallelism."""
MOST_POINTS = 256


@dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    """What a plan of a program found."""

    program: SweptFile
    devices: int
    axes: Sequence[str]
    """What varies: options of the program."""
    rows: Sequence[Mapping[str, Any]]
    """One for each point, as a sweep's table has it, the best first; failures are last."""
    points: Sequence[Point]
    """Those of ``rows``."""

    @property
    def command(self) -> str:
        """The command that runs the best."""
        job = self.points[0].job
        nodes = [] if job["nodes"] == 1 else ["--nnodes", str(job["nodes"])]
        words = ["kernbench", "torchrun", "--machine", job["machine"], *nodes]
        words += ["--nproc-per-node", str(job["per_node"]), "--no-data"]
        words += ["--fold"] if job["fold"] else []
        changes = [
            word for key, value in job["changes"].items() for word in ("--set", f"{key}={value}")
        ]
        return shlex.join([*words, *changes, str(self.program.path), *job["args"]])


def kinds_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return which options take a size of parallelism, and of which kind.

    Flags take none.

    >>> kinds_of({"tp": None, "data_parallel_size": None, "tpot": None})
    {'tp': 'tp', 'data_parallel_size': 'dp'}
    """
    return {
        name: kind
        for name, option in options.items()
        for kind, pattern in _NAMES.items()
        if re.fullmatch(pattern, name) and getattr(option, "action", "") in ("", "store")
    }


def splits(
    kinds: Mapping[str, str], devices: int, node: int, limits: AllowedSizes
) -> Iterator[dict[str, str]]:
    """Yield the sizes of options that divide the devices.

    Where an option says how many replicas there are, sizes multiply to the devices; else replicas
    are what is left. TP stays within a node; experts (EP) are divided among replicas.
    """
    divisors = [index for index in range(1, devices + 1) if devices % index == 0]
    allowed = {
        name: [
            divisor
            for divisor in divisors
            if limits.allow(kind, divisor) and (kind != "tp" or divisor <= node)
        ]
        for name, kind in kinds.items()
    }
    for sizes in product(*allowed.values()):
        layout = dict(zip(kinds, sizes, strict=True))
        used = prod(size for name, size in layout.items() if kinds[name] != "ep")
        by_kind = {kind: prod(layout[n] for n in kinds if kinds[n] == kind) for kind in _NAMES}
        replicas = devices // (by_kind["tp"] * by_kind["pp"]) or 1
        is_whole = used == devices if "dp" in kinds.values() else devices % used == 0
        if is_whole and replicas % by_kind["ep"] == 0:
            yield {name: str(size) for name, size in layout.items()}


def plan_script(
    text: str,
    settings: Settings,
    devices: int,
    node: int,
    limits: AllowedSizes,
    more: Mapping[str, Sequence[str]],
    workers: int | None,
    goal: str,
    progress: Progress,
) -> ScriptPlan:
    """Run a program with every split of its own options over the devices, and rank them.

    ``more`` are values of other options, all of which are tried with each split.

    Raises:
        UsageError: It is no PyTorch program, has no such options, or none of its runs ended well.
        UnknownNameError: There is no such file.
    """
    find_bench(text)
    kind = kind_of(text)
    if kind is not Kind.PYTORCH:
        raise UsageError(
            f"{text} is {kind}: only a PyTorch program is planned; see kernbench sweep"
        )
    program = SweptFile(text, kind, settings)
    kinds = {name: kind for name, kind in kinds_of(program.options).items() if name not in more}
    if not kinds and not more:
        named = ", ".join(option.spelled for option in program.options.values()) or "none"
        raise UsageError(
            f"{program.path.name} has no option that says how it is split over devices, such as "
            f"--tp, --pp-size or --data-parallel-degree; its options: {named}; name others by "
            "--grid NAME=VALUE,..."
        )
    layouts = list(splits(kinds, devices, node, limits))
    points = [
        program.point({**layout, **dict(zip(more, values, strict=True))})
        for layout in layouts
        for values in product(*more.values())
    ]
    if not points:
        raise UsageError(
            f"no sizes of {', '.join(program.options[kind].spelled for kind in kinds)} divide "
            f"{devices} devices, of those that are allowed"
        )
    if len(points) > MOST_POINTS:
        raise UsageError(
            f"{program.path.name} could be run in {len(points)} ways; the most are {MOST_POINTS}: "
            "allow fewer sizes, as in --tp 4,8"
        )
    progress.total = len(points)
    with tempfile.TemporaryDirectory(prefix="kernbench-") as folder:
        store = ResultFolder(Path(folder), program.path.name)
        kept = results_of(points, store, Limits(), workers, progress)
    rows = [(flat(point, kept.get(point.key)), point) for point in points]
    rows.sort(key=lambda pair: _amount(pair[0], goal))
    if rows[0][0]["status"] != "done":
        raise UsageError(
            f"none of {len(rows)} runs of {program.path.name} ended well; the first: "
            f"{_said(rows[0][0])}"
        )
    return ScriptPlan(
        program=program,
        devices=devices,
        axes=[*kinds, *more],
        rows=[row for row, _ in rows],
        points=[point for _, point in rows],
    )


_GOALS = {"energy": "energy_j", "cost": "cost_usd"}


def _amount(row: Mapping[str, Any], goal: str) -> float:
    if row["status"] != "done":
        return float("inf")
    return float(row[_GOALS[goal]] if goal in _GOALS else step_ns(row))


def step_ns(row: Mapping[str, Any]) -> float:
    """Return the time of a steady step of a point that ended well; of the run if it has none."""
    return float(row.get("step_ns") or row["time_ns"])


def _said(row: Mapping[str, Any]) -> str:
    return str(row["error"]).splitlines()[0]


def print_script_plan(plan: ScriptPlan, console: Console, top: int, goal: str) -> None:
    """Print the ``top`` points, what failed, and the command that runs the best."""
    from rich.table import Table

    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    done = [row for row in plan.rows if row["status"] == "done"]
    failed = plan.rows[len(done) :]
    has_steps = all("step_ns" in row for row in done)
    machine = plan.points[0].job["machine"]
    count = f"{len(done)} split{'s' if len(done) > 1 else ''} ran"
    say(f"{plan.program.path.name} on {plan.devices} devices of {machine}: {count}\n")
    table = Table(box=None, pad_edge=False, header_style="")
    for name in plan.axes:
        table.add_column(name, justify="right")
    for title in ("a step" if has_steps else "the run", "slower", "GiB", *_more(done[0], goal)):
        table.add_column(title, justify="right", no_wrap=True)
    for row in done[:top]:
        slower = step_ns(row) / step_ns(done[0]) - 1
        table.add_row(
            *(str(row[name]) for name in plan.axes),
            seconds(step_ns(row) / 1e9),
            "" if row is done[0] else f"{slower:+.1%}",
            f"{row['device_memory_bytes'] / GIB:.1f}",
            *(f"{row[key]:.3g}" for key in _more(done[0], goal).values()),
        )
    console.print(table)
    if failed:
        said = ", ".join(f"{name}={failed[0].get(name)}" for name in plan.axes)
        count = f"{len(failed)} split{'s' if len(failed) > 1 else ''} failed"
        say(f"\n{count}; {said}: {_said(failed[0])}")
    if not has_steps:
        say("\nnote: it has no steps that are found, so that splits are ranked by their whole runs")
    say(f"\nto run the best: {plan.command}")


def _more(row: Mapping[str, Any], goal: str) -> dict[str, str]:
    """Return the columns of the goal, by their titles."""
    titles = {"energy": "J of the run", "cost": "USD of the run"}
    return {titles[goal]: _GOALS[goal]} if goal in _GOALS else {}
