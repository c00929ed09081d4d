"""``kernbench judge``: a verdict on a kernel, against a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import guarded_command, show_or_write
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.judging import Verdict


_SERVE = ("serve",)


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(common.CommandOptions):
    """What ``kernbench judge`` was given."""

    candidates: list[str] | None = common.argument(
        None, metavar="CANDIDATE...", help="Files with kernels."
    )
    against: str | None = common.option(
        None,
        metavar="TASK",
        help="A task's file, or a folder with task.yml; see the docs.",
        not_with=_SERVE,
    )
    machine: list[str] | None = common.option(
        None,
        metavar="NAME",
        help="A machine to be timed on; repeatable [default: h100-sxm].",
        not_with=_SERVE,
        autocompletion=common.machines_from,
    )
    seed: int | None = common.option(
        None, metavar="N", help="Of the judge's inputs; drawn without."
    )
    at_least: float = common.option(
        1.0, metavar="X", help="The speed-up over eager that is fast enough."
    )
    compile: bool = common.option(
        False, "--compile", help="Time torch.compile of the reference, too."
    )
    values: bool = common.option(
        True, "--values/--no-values", help="Look at results; without, at time only."
    )
    seconds: float = common.option(
        120.0, metavar="S", help="How long one call of a candidate may take."
    )
    json: common.AnalysisJson = common.only_with(None, not_with=_SERVE)
    markdown: common.Markdown = common.only_with(None, not_with=_SERVE)
    batch: str | None = common.option(
        None,
        metavar="DIR",
        help="Judge all Python files of DIR against TASK, or those of each folder in it that "
        "has a task.py or task.yml; goes on where it stopped; writes DIR/verdicts.parquet.",
    )
    engine: common.SweepEngine = common.only_with("local", "batch", not_with=_SERVE)
    workers: common.Workers = common.only_with(None, "batch", "serve")
    page: str | None = common.option(
        None, metavar="FILE", help="Write the verdicts as a page.", not_with=_SERVE
    )
    serve: bool = common.option(
        False, "--serve", help="Answer over HTTP, and MCP at /mcp: tasks and candidates are sent."
    )
    host: str = common.option(
        "127.0.0.1", metavar="ADDRESS", help="With --serve: where to listen.", needs=_SERVE
    )
    port: int = common.option(
        8000, metavar="N", min=0, max=65535, help="With --serve; 0: one that is free.", needs=_SERVE
    )
    debug: common.Debug = False


PLACE = 24
app = typer.Typer()


@guarded_command(app, "judge")
def _judge(options: JudgeOptions) -> int:
    """Judge kernels against a task: right or wrong, how fast, why, without believing them.

    kernbench judge softmax.py --against softmax_task.py

    Exits with 0: right and fast enough, 3: right, 4: wrong, 5: a cheat, 6: cannot say; of several
    candidates with the highest of theirs. 1 is an error of the judge, 2 wrong usage.
    """
    if options.serve:
        return _serve(options)
    verdicts = _judged_batch(options) if options.batch else _judged(options)
    plain: Any = [verdict.to_dict() for verdict in verdicts]
    if options.page is not None:
        _write_page(options.page, plain)
    show_or_write(
        *(plain if len(plain) > 1 else plain[0], options.json, lambda _: print_verdicts(verdicts)),
        *(options.markdown, lambda: as_markdown(verdicts)),
    )
    return max(verdict.exit_code for verdict in verdicts)


def as_markdown(verdicts: list[Verdict]) -> str:
    """Return one verdict in full, and of several how they stand beside each other, too."""
    from kernbench.judging import beside_markdown

    whole = [verdict.to_markdown() for verdict in verdicts]
    return "\n".join([*([beside_markdown(verdicts)] if len(verdicts) > 1 else []), *whole])


def _judged(options: JudgeOptions) -> list[Verdict]:
    from pathlib import Path

    from kernbench.judging import Judge

    if not options.candidates or options.against is None:
        raise UsageError("name candidates and a task: kernbench judge CANDIDATE... --against TASK")
    for candidate in options.candidates:
        if not Path(candidate).exists():
            raise UsageError(f"{candidate}: there is no such file")
    with Judge() as judge:
        return [
            judge(candidate, options.against, **_options_of_judge(options))
            for candidate in options.candidates
        ]


def _options_of_judge(options: JudgeOptions) -> dict[str, Any]:
    from kernbench.judging import DEFAULT_MACHINES, CandidateLimits

    return {
        "machines": tuple(options.machine or DEFAULT_MACHINES),
        "seed": options.seed,
        "at_least": options.at_least,
        "values": options.values,
        "compiled": options.compile,
        "limits": CandidateLimits(seconds=options.seconds),
    }


def _judged_batch(options: JudgeOptions) -> list[Verdict]:
    from dataclasses import asdict
    from pathlib import Path

    from kernbench.cli.console.progress import progress
    from kernbench.cli.judges.batch import TABLE, end_judges, points_of, run_batch, write_verdicts
    from kernbench.cli.sweeps.engines import check_engine
    from kernbench.cli.sweeps.running import Progress
    from kernbench.judging import Verdict

    if options.candidates:
        raise UsageError("--batch DIR judges what is in DIR; name no candidates beside it")
    check_engine(options.engine, options.workers)
    folder = Path(options.batch or "")
    judging = _options_of_judge(options)
    judging["limits"] = asdict(judging["limits"])
    points = points_of(folder, options.against, judging)
    state = Progress(total=len(points), what="candidates")
    try:
        with progress(state.describe, state.share):
            verdicts = run_batch(folder, points, options.engine, options.workers, state)
    finally:
        end_judges()
    write_verdicts(verdicts, folder / TABLE)
    return [Verdict.of(verdict) for verdict in verdicts]


def _write_page(where: str, verdicts: list[dict[str, Any]]) -> None:
    from pathlib import Path

    from kernbench.cli.judges.page import verdicts_page
    from kernbench.outputs import write_text

    paths = {verdict["candidate"] for verdict in verdicts}
    sources = {path: Path(path).read_text(encoding="utf-8", errors="replace") for path in paths}
    write_text(where, verdicts_page(verdicts, sources))


def _serve(options: JudgeOptions) -> int:
    from kernbench.service import serve_http, serving

    if options.candidates or options.batch:
        raise UsageError("--serve judges what it is sent; name no candidates beside it")
    judging = _options_of_judge(options)
    del judging["machines"]
    with serving(None, workers=options.workers or 1, timeout_s=600, **judging) as tools:
        serve_http(tools, options.host, options.port, waiting=64)
    return 0


def print_verdicts(verdicts: list[Verdict]) -> None:
    """Print verdicts as a table, and below it what is behind each."""
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from kernbench.judging import speed_line

    console = Console(highlight=False, soft_wrap=True)
    table = Table("candidate", "verdict", "why", box=None, pad_edge=False)
    for verdict in verdicts:
        table.add_row(Path(verdict.candidate).name, str(verdict.outcome), verdict.why)
    console.print(table)
    for item in verdicts:
        lines = [f"{time.machine}, size {time.size}: {speed_line(time)}" for time in item.times]
        if item.failure is not None:
            failure = item.failure
            at = f", written by {failure.line}" if failure.line else ""
            lines.append(f"fails at size {failure.size} on {failure.values} values{at}")
        for line in [*lines, *item.tricks[1:], *item.remarks, f"seed {item.seed}"]:
            console.print(f"  {line}", markup=False)
