"""``kernbench judge``: a verdict on a kernel, against a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernbench.cli import options as given
from kernbench.cli.programs.reporting import STDOUT, guarded
from kernbench.cli.registry import options_command
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.judging import Verdict


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """What ``kernbench judge`` was given."""

    candidates: Annotated[
        list[str], typer.Argument(metavar="CANDIDATE...", help="Files with kernels.")
    ]
    against: Annotated[
        str,
        typer.Option(
            metavar="TASK", help="A task's file, or a folder with task.yml; see the docs."
        ),
    ]
    machine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A machine to be timed on; repeatable [default: h100-sxm].",
            autocompletion=given.machines_from,
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the judge's inputs; drawn without.")
    ] = None
    at_least: Annotated[
        float, typer.Option(metavar="X", help="The speed-up over eager that is fast enough.")
    ] = 1.0
    compile: Annotated[
        bool, typer.Option("--compile", help="Time torch.compile of the reference, too.")
    ] = False
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Look at results; without, at time only.")
    ] = True
    seconds: Annotated[
        float, typer.Option(metavar="S", help="How long one call of a candidate may take.")
    ] = 120.0
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write verdicts as JSON; - is stdout.")
    ] = None
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write them as Markdown; - is stdout.")
    ] = None
    debug: given.Debug = False
    own_options: frozenset[str] = frozenset()
    """The names of the command's options."""


PLACE = 24
app = typer.Typer()


@options_command(app, "judge")
def _judge(context: typer.Context, options: JudgeOptions) -> int:
    """Judge kernels against a task: right or wrong, how fast, why, without believing them.

    Exits with 0: right and fast enough, 3: right, 4: wrong, 5: a cheat, 6: cannot say; of several
    candidates with the highest of theirs. 1 is an error of the judge, 2 wrong usage.
    """
    return guarded(lambda: judge_all(options), options.debug, usage=True)


def judge_all(options: JudgeOptions) -> int:
    """Judge all candidates, print or write the verdicts, and return the exit status."""
    import json

    from kernbench.judging import DEFAULT_MACHINES, CandidateLimits, Judge
    from kernbench.outputs import write_text

    if options.json == options.markdown == STDOUT:
        raise UsageError("only one of --json and --markdown can go to stdout")
    if not options.seconds > 0:
        raise UsageError(f"--seconds must be above 0, but got {options.seconds:g}")
    with Judge() as judge:
        verdicts = [
            judge(
                each,
                options.against,
                machines=tuple(options.machine or DEFAULT_MACHINES),
                seed=options.seed,
                at_least=options.at_least,
                values=options.values,
                compiled=options.compile,
                limits=CandidateLimits(seconds=options.seconds),
            )
            for each in options.candidates
        ]
    plain: Any = [each.to_dict() for each in verdicts]
    texts = {
        options.json: json.dumps(plain if len(plain) > 1 else plain[0], indent=2) + "\n",
        options.markdown: "\n".join(each.to_markdown() for each in verdicts),
    }
    for where, text in texts.items():
        if where == STDOUT:
            print(text, end="")
        elif where is not None:
            write_text(where, text)
    if STDOUT not in texts:
        print_verdicts(verdicts)
    return max(each.exit_code for each in verdicts)


def print_verdicts(verdicts: list[Verdict]) -> None:
    """Print verdicts as a table, and below it what is behind each."""
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from kernbench.judging import speed_line

    console = Console(highlight=False, soft_wrap=True)
    table = Table("candidate", "verdict", "why", box=None, pad_edge=False)
    for each in verdicts:
        table.add_row(Path(each.candidate).name, str(each.outcome), each.why)
    console.print(table)
    for each in verdicts:
        lines = [f"{time.machine}, size {time.size}: {speed_line(time)}" for time in each.times]
        if each.failure is not None:
            failure = each.failure
            at = f", written by {failure.line}" if failure.line else ""
            lines.append(f"fails at size {failure.size} on {failure.values} values{at}")
        for line in [*lines, *each.tricks[1:], *each.remarks, f"seed {each.seed}"]:
            console.print(f"  {line}", markup=False)
