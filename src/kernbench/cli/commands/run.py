"""``kernbench run``: one bench on one machine, and every file and table it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kernbench.cli.programs.bench_file import known_benches
from kernbench.cli.programs.benches import BenchOptions, run_bench, show_bench
from kernbench.cli.registry import options_command


@dataclass(frozen=True, kw_only=True)
class RunOptions(BenchOptions):
    """What ``kernbench run`` was given."""

    program: Annotated[
        str,
        typer.Argument(
            metavar="BENCH",
            help="A Python file with run(torch, ...), or a name.",
            show_default=False,
        ),
    ] = ""
    show_help: Annotated[
        bool, typer.Option("--help", help="Show this, or the parameters of BENCH.")
    ] = False


PLACE = 10
app = typer.Typer()


@options_command(
    app,
    "run",
    context_settings={"help_option_names": []},
    epilog=f"Benches that ship with kernbench: {', '.join(known_benches())}.",
)
def _run(context: typer.Context, options: RunOptions) -> int:
    """Run a bench on a machine and show where the time went."""
    if not options.program:
        if options.show_help:
            typer.echo(context.get_help())
            return 0
        typer.echo(f"error: name a bench: a file, or one of {', '.join(known_benches())}", err=True)
        return 2
    if options.show_help:
        return show_bench(options.program, options.debug)
    return run_bench(options)
