"""``kernbench why``: where the time of a saved run went, and its critical path."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from kernbench.cli import options as given
from kernbench.cli.console.progress import is_terminal
from kernbench.cli.programs.reporting import COLUMNS_OF_FILES, DONE, STDOUT, guarded
from kernbench.cli.registry import options_command


@dataclass(frozen=True, kw_only=True)
class WhyOptions:
    """What ``kernbench why`` was given."""

    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that --save has kept.")]
    path: Annotated[
        bool, typer.Option("--path", help="Every segment of the critical path, one by one.")
    ] = False
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write it as JSON; - is stdout.")
    ] = None
    debug: given.Debug = False
    own_options: frozenset[str] = frozenset()


PLACE = 20
app = typer.Typer()


@options_command(app, "why")
def _why(context: typer.Context, options: WhyOptions) -> int:
    """Say where the time of a saved run went: by resource, by kernel, along the critical path."""
    return guarded(lambda: show_why(options), options.debug, usage=True)


def show_why(options: WhyOptions) -> int:
    """Print or write why a run took its time, and return the exit status."""
    import json

    from rich.console import Console

    from kernbench.analysis import explain, print_why
    from kernbench.outputs import write_text
    from kernbench.saved import load_run

    run = load_run(options.run)
    why = explain(run.log, run.machine, run.ranks)
    text = json.dumps(why, indent=1)
    if options.json == STDOUT:
        print(text)
        return DONE
    if options.json is not None:
        write_text(options.json, f"{text}\n")
    is_given = is_terminal(sys.stdout) or "COLUMNS" in os.environ
    console = Console(
        file=sys.stdout, highlight=False, width=None if is_given else COLUMNS_OF_FILES
    )
    print_why(why, console, whole_path=options.path)
    return DONE
