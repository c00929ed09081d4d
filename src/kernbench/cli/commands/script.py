"""``kernbench script``: a program unaware of kernbench, on a machine (ADR-0050)."""

from __future__ import annotations

import typer

from kernbench.cli.options import ProgramCommand
from kernbench.cli.programs.scripts import ScriptOptions, run_script
from kernbench.cli.registry import options_command

PLACE = 20
app = typer.Typer()


@options_command(
    app, "script", cls=ProgramCommand, context_settings={"allow_interspersed_args": False}
)
def _script(context: typer.Context, options: ScriptOptions) -> int:
    """Run a program written for a GPU, unmodified, on a machine; then show its launches.

    kernbench script tune.py --size 4096 --machine h100-sxm

    Arguments of the program come after FILE; options of kernbench before it, or after it where the
    program has none of that name. Its PyTorch tensors
    stay on the CPU and stand for the device's; triton.testing.do_bench gives modeled time.
    """
    return run_script(options)
