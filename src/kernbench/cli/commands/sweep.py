"""``kernbench sweep``: a program at every point of a grid, each run once (ADR-0150)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kernbench.cli import options as common
from kernbench.cli.console.progress import progress
from kernbench.cli.programs.reporting import DONE, FAILED, guarded_command
from kernbench.errors import OutputError, UsageError

if TYPE_CHECKING:
    from kernbench.cli.sweeps.points import Point
    from kernbench.cli.sweeps.running import Limits, Progress
    from kernbench.cli.sweeps.store import ResultFolder
    from kernbench.cli.sweeps.study import Study

PLACE = 40
app = typer.Typer()
_DEFAULT_TABLE = "results.parquet"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(common.PointsOptions):
    """What ``kernbench sweep`` was given."""

    program: str = common.argument(
        ...,
        metavar="FILE|STUDY",
        help="What kernbench run takes, serve-bench, or a study: a YAML or JSON file.",
    )
    grid: list[str] | None = common.option(
        None,
        "--grid",
        "-g",
        metavar="NAME=VALUE,...",
        help="An axis: a parameter or option of the program, machine, ranks, nnodes, "
        "env.NAME, or a key of the machine with dots.",
    )
    set: list[str] | None = common.option(
        None, metavar="KEY=VALUE", help="A key of the machine at all points."
    )
    tokens: str | None = common.option(
        None,
        metavar="N|A*B",
        help="Tokens of a step, for tokens/s: numbers, and options of the program.",
    )
    data: bool | None = common.option(
        None, "--data/--no-data", help="Compute numbers, or time only."
    )
    seed: int | None = common.option(None, help="Seed of random numbers.")
    table: str | None = common.option(
        None, metavar="FILE", help="The table, .csv or .parquet [default: DIR/results.parquet]."
    )
    plot: str | None = common.option(
        None, metavar="FILE", help="A picture of the table: .png, .svg, .pdf."
    )
    metric: str = common.option(
        "time_ns", metavar="COLUMN", help="The column that --plot shows.", needs=("plot",)
    )
    shard: str | None = common.option(
        None, metavar="i/N", help="Run only every N-th point, from the i-th."
    )
    retry_failed: bool = common.option(
        False,
        "--retry-failed",
        help="Run points again that have failed.",
        not_with=("lists_only",),
    )
    lists_only: bool = common.option(False, "--list", help="Run nothing; show what there is.")


@guarded_command(app, "sweep", cls=common.AxesCommand)
def _sweep(options: SweepOptions) -> int:
    """Run a program at every point of a grid, and show what came of it.

    kernbench sweep gemm --grid m=1024,2048 --grid sip.cube.hbm_bandwidth_gbps=2000,4000

    kernbench sweep train.py --arg hidden=1024,2048 --grid ranks=1,2,4 --machine h100-sxm --no-data
    -- --steps 3

    Each result is kept in DIR as soon as it is there; the same command goes on where it, or another
    one, was ended. A point is known by its program, parameters, machine and versions. A point that
    fails is a row as well; the command then exits with 1.
    """
    from kernbench.cli.sweeps.points import swept
    from kernbench.cli.sweeps.running import Limits
    from kernbench.cli.sweeps.store import ResultFolder
    from kernbench.cli.sweeps.study import is_study, named, parse_shard
    from kernbench.cli.sweeps.table import check_table, say_what_is_long, tokens_of

    study = _study(options)
    part, parts = parse_shard(options.shard)
    if options.table is not None:
        check_table(options.table)
    if options.plot is not None:
        from kernbench.cli.sweeps.plot import format_of_plot

        format_of_plot(Path(options.plot))
    with named(Path(options.program)) if is_study(options.program) else nullcontext():
        program = swept(study.program, study.settings)
        points = study.points(program)[part::parts]
    tokens = {point.key: tokens_of(options.tokens, point, program) for point in points}
    say_what_is_long(points, study.settings)
    folder = Path(options.output or f"sweeps/{program.name}")
    store = ResultFolder(folder, program.path.name)
    limits = Limits(timeout_s=study.timeout_s, memory_mb=study.memory_mb)
    rows = store.rows(points)
    wanted = [point for point in points if _is_wanted(rows.get(point.key), limits, options)]
    again = frozenset(rows.keys() & {point.key for point in wanted})
    ran = _run(wanted, again, len(points), store, limits, options)
    return _show(options, study, points, store, ran, tokens)


def _study(options: SweepOptions) -> Study:
    from dataclasses import replace

    from kernbench.cli.sweeps.study import (
        Study,
        extended,
        is_study,
        load_study,
        parse_axes,
        parse_memory,
        parse_pairs,
    )
    from kernbench.serving import PROGRAM

    path = Path(options.program)
    program = str(PROGRAM) if options.program == "serve-bench" else options.program
    study = load_study(path) if is_study(options.program) else Study(program=program)
    settings: dict[str, Any] = {
        "machine": options.machine,
        "ranks": options.ranks,
        "fold": options.fold or None,
        "args": options.args,
        "data": options.data,
        "seed": options.seed,
    }
    asked = parse_axes(options.arg or (), "--arg")
    settings["forced"] = frozenset(asked) or None
    changes = {**study.settings.changes, **parse_pairs(options.set or (), "--set")}
    said: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    study = replace(study, settings=replace(study.settings, changes=changes, **said))
    return extended(
        study,
        fixed=parse_pairs(options.param or (), "--param"),
        axes={**asked, **parse_axes(options.grid or ())},
        timeout_s=options.timeout,
        memory_mb=parse_memory(options.memory),
    )


def _is_wanted(row: Mapping[str, Any] | None, limits: Limits, options: SweepOptions) -> bool:
    if options.lists_only:
        return False
    if row is None or limits.are_wider_than(row):
        return True
    return options.retry_failed and row["status"] != "done"


def _run(
    wanted: Sequence[Point],
    again: frozenset[str],
    total: int,
    store: ResultFolder,
    limits: Limits,
    options: SweepOptions,
) -> Progress:
    from kernbench.cli.sweeps.engines import check_engine, engine
    from kernbench.cli.sweeps.running import Progress, run_points

    check_engine(options.engine, options.workers)
    state = Progress(total=total, kept=total - len(wanted))
    if not wanted:
        return state
    try:
        with (
            engine(options.engine, options.workers) as point_engine,
            progress(state.describe, state.share),
        ):
            run_points(wanted, again, store, point_engine, limits, state)
    except (KeyboardInterrupt, OutputError) as error:
        kept = state.kept + state.done + state.failed
        text = f"{kept} of {total} results are kept in {store.folder}; the same command goes on"
        if isinstance(error, KeyboardInterrupt):
            error.add_note(text)
            raise
        raise OutputError(f"{error}; {text}") from None
    return state


def _show(
    options: SweepOptions,
    study: Study,
    points: Sequence[Point],
    store: ResultFolder,
    ran: Progress,
    tokens: Mapping[str, int | None],
) -> int:
    from rich.console import Console

    from kernbench.cli.sweeps.plot import write_plot
    from kernbench.cli.sweeps.table import flat, show, without_effect, write_table

    kept = store.rows(points)
    rows = [flat(point, kept.get(point.key), tokens[point.key]) for point in points]
    if not rows:
        raise UsageError(f"--shard {options.shard}: there are fewer points than shards")
    table = options.table or str(store.folder / _DEFAULT_TABLE)
    write_table(rows, table)
    if options.plot is not None:
        write_plot(rows, study.names, options.metric, options.plot)
    show(rows, study.names, Console(file=sys.stdout, highlight=False, markup=False))
    states = [row["status"] for row in rows]
    done, pending = states.count("done"), states.count("pending")
    failed = len(rows) - done - pending
    parts = [f"{done} done", *([f"{failed} failed"] if failed else [])]
    parts += [f"{pending} pending"] if pending else []
    parts += [f"{ran.done + ran.failed} of them run now"] if ran.done + ran.failed else []
    what = f"{len(rows)} point{'s' if len(rows) > 1 else ''}"
    print(f"\n{what}: {', '.join(parts)}; kept in {store.folder}, table in {table}")
    idle = without_effect(points, kept, study.names)
    if idle:
        print(
            f"note: no figure depends on {' or '.join(idle)}: does {options.program} read it?",
            file=sys.stderr,
        )
    if ran.lost:
        print(
            f"{len(ran.lost)} points were lost with their workers, three times each, such as "
            f"{ran.lost[0]}; run again",
            file=sys.stderr,
        )
    return FAILED if ran.lost or (failed and not options.lists_only) else DONE
