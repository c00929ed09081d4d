"""``kernbench trace``: the timeline of a saved run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from kernbench.cli import options as given
from kernbench.cli.programs.reporting import DONE, dump_timeline, guarded
from kernbench.cli.registry import options_command


@dataclass(frozen=True, kw_only=True)
class TraceOptions(given.SavedRunOptions):
    """What ``kernbench trace`` was given."""

    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that --save has kept.")]
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The timeline: .pftrace or .json; .gz compresses it."),
    ]


PLACE = 22
app = typer.Typer()


@options_command(app, "trace")
def _trace(context: typer.Context, options: TraceOptions) -> int:
    """Write the timeline of a saved run, with its critical path, for ui.perfetto.dev."""
    return guarded(lambda: write_timeline(options), options.debug, usage=True)


def write_timeline(options: TraceOptions) -> int:
    """Write the timeline, and return the exit status."""
    from kernbench.outputs import Outputs
    from kernbench.saved import load_run

    with Outputs({"FILE": options.file}, [options.run]) as outputs:
        run = load_run(options.run)
        with outputs.writing("FILE") as file:
            dump_timeline(run.log, run.machine, file, options.file)
        outputs.publish()
    print(f"timeline: {options.file} (open it in https://ui.perfetto.dev)", file=sys.stderr)
    return DONE
