"""``kernbench search``: parameters of a program that take least time, memory, money or energy."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kernbench.cli import options as common
from kernbench.cli.console.progress import progress
from kernbench.cli.programs.reporting import DONE, FAILED, guarded_command
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.cli.sweeps.searching import Goals, Search

PLACE = 41
app = typer.Typer()
_MOST_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class SearchOptions(common.PointsOptions):
    """What ``kernbench search`` was given."""

    space: list[str] | None = common.option(
        None,
        "--space",
        "-s",
        metavar="NAME=A,B,C|LOW..HIGH[:STEP|:log]",
        help="What may vary: a parameter or option of the program, machine, ranks, nnodes, "
        "env.NAME, or a key of the machine with dots.",
    )
    minimize: list[str] | None = common.option(
        None, metavar="time|step|memory|cost|energy", help="The goal, or several [default: time]."
    )
    trials: int = common.option(30, min=1, help="How many points are tried in all.")
    price: list[str] | None = common.option(
        None,
        metavar="MACHINE=PRICE",
        help="Of a device and hour, for the cost [default: of the machine].",
    )
    data: common.Data = True
    seed: int = common.option(0, help="Seed of the proposals.")
    plot: str | None = common.option(
        None, metavar="FILE", help="A picture of all points: .png, .svg, .pdf."
    )


@guarded_command(app, "search", cls=common.AxesCommand)
def _search(options: SearchOptions) -> int:
    """Look for the parameters of a program that take least time, device memory, money or energy.

    kernbench search gemm --space block_m=32,64,128 --space block_n=32..256:32 --trials 20

    kernbench search train.py --space micro_batch=1..16:log --minimize step --no-data -- --steps 3

    Optuna proposes points; they are run and kept as those of a sweep, and the same command goes on
    where it was ended. With several goals, all points are shown that no other beats in each. Needs
    Optuna: pip install "kernbench[search]".
    """
    from kernbench.cli.sweeps.engines import engine
    from kernbench.cli.sweeps.plot import format_of_plot
    from kernbench.cli.sweeps.points import Settings, swept
    from kernbench.cli.sweeps.running import Limits, Progress
    from kernbench.cli.sweeps.searching import Search, parse_space
    from kernbench.cli.sweeps.store import ResultFolder
    from kernbench.cli.sweeps.study import parse_memory, parse_pairs, split_values

    forced = parse_space(options.arg, split_values, "--arg") if options.arg else []
    axes = [
        *forced,
        *(parse_space(options.space or (), split_values) if options.space or not forced else []),
    ]
    fixed = parse_pairs(options.param or (), "--param")
    goals = _goals(options)
    limits = Limits(timeout_s=options.timeout, memory_mb=parse_memory(options.memory))
    if options.plot is not None:
        format_of_plot(Path(options.plot))
    settings = Settings(
        machine=options.machine,
        ranks=options.ranks,
        data=options.data,
        args=tuple(options.args or ()),
        forced=frozenset(axis.name for axis in forced),
        fold=options.fold,
    )
    bench = swept(options.program, settings)
    bench.check_names([*fixed, *(axis.name for axis in axes)])
    for axis in axes:
        if axis.name in fixed:
            raise UsageError(f"{axis.name} has a space and a fixed value; give one of them")
    named = [axis.values for axis in axes if axis.name == "machine"]
    goals.check(named[0] if named else [options.machine or bench.machine])
    store = ResultFolder(Path(options.output or f"sweeps/{bench.name}"), bench.path.name)
    search = Search(store.folder, axes, goals, options.seed, options.trials)
    trials = min(options.trials, search.size or options.trials)
    state = Progress(total=trials, kept=search.told)
    try:
        with (
            engine(options.engine, options.workers) as point_engine,
            progress(state.describe, state.share),
        ):
            search.run(trials, bench, fixed, store, point_engine, limits, state)
    except KeyboardInterrupt as error:
        error.add_note(
            f"{search.told} of {trials} trials are kept in {store.folder}; the same command goes on"
        )
        raise
    return _show(options, search, goals, store.folder)


def _goals(options: SearchOptions) -> Goals:
    from kernbench.cli.sweeps.searching import Goals

    prices: dict[str, float] = {}
    for given_price in options.price or ():
        machine, _, text = given_price.partition("=")
        try:
            prices[machine] = float(text)
        except ValueError:
            raise UsageError(
                f"--price must be MACHINE=NUMBER, as in h100-sxm=2.50, but got {given_price!r}"
            ) from None
    return Goals(names=tuple(options.minimize or ("time",)), prices=prices)


def _error_in(folder: Path) -> str:
    """Return why a point that is kept in a folder failed."""
    points = (
        json.loads(path.read_text().partition("\n")[0]) for path in folder.glob("points/*.json")
    )
    return next((str(point["error"]) for point in points if point.get("error")), "nothing")


def _show(options: SearchOptions, search: Search, goals: Goals, folder: Path) -> int:
    from rich.console import Console
    from rich.table import Table

    best, tried = search.best(), search.tried()
    if not tried:
        print(
            f"none of {search.told} trials is done, and what is in {folder} is not tried again: "
            f"begin in another folder; one says: {_error_in(folder)}",
            file=sys.stderr,
        )
        return FAILED
    if options.plot is not None:
        from kernbench.cli.sweeps.plot import write_front

        write_front(tried, best, goals.names, options.plot)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in best[0][0]:
        table.add_column(name, overflow="fold")
    for name in goals.names:
        table.add_column(name, justify="right", no_wrap=True)
    for params, values in best[:_MOST_SHOWN]:
        cells = [_shown(name, value) for name, value in zip(goals.names, values, strict=True)]
        table.add_row(*map(str, params.values()), *cells)
    Console(file=sys.stdout, highlight=False, markup=False).print(table)
    told = search.told
    failed = f", {told - len(tried)} failed" if told > len(tried) else ""
    what = "the best" if len(goals.names) == 1 else "no other beats these in every goal"
    trials = f"{told} trial{'s' if told > 1 else ''}"
    whole = ", which are all points" if told == search.size and told > 1 else ""
    print(f"\n{what}, of {trials}{whole}{failed}; kept in {folder}")
    return DONE


def _shown(goal: str, value: float) -> str:
    from kernbench.analysis import format_joules
    from kernbench.report import format_amount, format_ns

    if goal in ("time", "step"):
        return format_ns(value)
    if goal == "energy":
        return format_joules(value)
    return format_amount(value, "B") if goal == "memory" else f"{value:.3g}"
