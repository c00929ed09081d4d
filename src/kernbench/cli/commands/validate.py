"""``kernbench validate``: the model's error on rows that a user measured."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from kernbench.cli import options as common
from kernbench.cli.console.progress import is_terminal
from kernbench.cli.registry import options_command
from kernbench.errors import UsageError
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from kernbench.accuracy.rows import Row


PLACE = 40
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(common.CommandOptions):
    """What ``kernbench validate`` was given."""

    data: list[str] = common.argument(..., metavar="DATA...", help="CSV files of measured rows.")
    json: str | None = common.option(None, metavar="FILE", help="Write the errors as JSON.")
    worst: int = common.option(0, metavar="N", min=0, help="Show the N rows that are furthest off.")
    jobs: int | None = common.option(None, metavar="N", min=1, help="Processes; as many as CPUs.")
    machine: list[str] | None = common.option(
        None, metavar="FILE", help="Your machine for the devices it lists; repeatable."
    )


@options_command(app, "validate")
def _validate(context: typer.Context, options: ValidateOptions) -> int:
    """Score the model on measured rows: errors per category, device and source.

    kernbench validate rows.csv --machine mychip.yaml
    """
    validate(options)
    return 0


def validate(options: ValidateOptions) -> None:
    """Score the model, write and print the table.

    Raises:
        KernbenchError: The rows or the options are wrong, or a file cannot be written.
    """
    from kernbench.accuracy.rows import Machines, read_rows
    from kernbench.accuracy.score import answer_rows, errors_json, errors_text
    from kernbench.hardware import machine_text

    with Outputs({"--json": options.json}, [*options.data, *(options.machine or ())]) as outputs:
        rows = read_rows(options.data)
        check_own(rows, options.data)
        machines = Machines([machine_text(name) for name in options.machine or ()])
        with row_bar(len(rows)) as advance:
            scored = answer_rows(rows, options.jobs or os.cpu_count() or 1, advance, machines)
        if "--json" in outputs:
            with outputs.writing("--json") as file:
                file.write(f"{json.dumps(errors_json(scored), indent=2)}\n".encode())
        outputs.publish()
    print(errors_text(scored, options.worst))


def check_own(rows: Sequence[Row], files: Sequence[str]) -> None:
    """Refuse what is not of kernels that users time themselves.

    Raises:
        UsageError: There are no rows, or some are of a category of published rows.
    """
    from kernbench.accuracy.rows import OWN

    if not rows:
        raise UsageError(f"there is nothing to score: {', '.join(files)} has no rows")
    known = ", ".join(OWN.by_category)
    for row in rows:
        if row.category not in OWN.by_category:
            raise UsageError(
                f"{row.where} is a row of {row.category}, and kernbench alone answers rows of "
                f"{known}: rows that others published are answered by the validation package of a "
                f"clone of kernbench (make validate)"
            )


@contextmanager
def row_bar(total: int) -> Iterator[Callable[[int], Any]]:
    """Show progress in rows, if stderr is a terminal."""
    if not is_terminal(sys.stderr):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    shown = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*shown, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
