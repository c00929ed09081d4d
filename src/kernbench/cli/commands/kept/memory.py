"""``kernbench memory``: what was in the memory of devices in a saved run."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import guarded_command, show_or_write


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(common.RangeOptions):
    """What ``kernbench memory`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    rank: int | None = common.option(
        None, metavar="N", help="Whose peak to show [default: of all ranks the highest]."
    )


PLACE = 22
app = typer.Typer()


@guarded_command(app, "memory")
def _memory(options: MemoryOptions) -> int:
    """Say what was in device memory over time, and at its peak: by phase, module, line, tensor.

    kernbench memory train.run
    """
    from kernbench.analysis import memory_use, print_memory
    from kernbench.saved import load_run

    log = load_run(options.run).log
    # What does not fit does not fit in any step.
    use = memory_use(log, options.rank, options.part(log, is_steady=False).window)
    return show_or_write(use, options.json, lambda console: print_memory(use, console))
