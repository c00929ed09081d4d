"""``kernbench memory``: what was in the memory of devices in a saved run."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import DONE, guarded, show_or_write
from kernbench.cli.registry import options_command


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(common.RangeOptions):
    """What ``kernbench memory`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    rank: int | None = common.option(
        None, metavar="N", help="Whose peak to show [default: of all ranks the highest]."
    )


PLACE = 22
app = typer.Typer()


@options_command(app, "memory")
def _memory(context: typer.Context, options: MemoryOptions) -> int:
    """Say what was in device memory over time, and at its peak: by phase, module, line, tensor.

    kernbench memory train.run
    """
    return guarded(lambda: show_memory(options), options.debug, usage=True)


def show_memory(options: MemoryOptions) -> int:
    """Print or write what a run had in memory, and return the exit status."""
    from kernbench.analysis import memory_use, print_memory
    from kernbench.saved import load_run

    log = load_run(options.run).log
    # What does not fit does not fit in any step.
    part = options.part(log, is_steady=False)
    use = memory_use(log, options.rank, part.window)
    show_or_write(use, options.json, lambda console: print_memory(use, console))
    return DONE
