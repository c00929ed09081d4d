"""``kernbench script``: a program unaware of kernbench, on a machine (ADR-0050)."""

from __future__ import annotations

import typer

from kernbench.cli.programs.scripts import ScriptOptions, run_script
from kernbench.cli.registry import options_command

PLACE = 20
app = typer.Typer()


@options_command(app, "script", context_settings={"allow_interspersed_args": False})
def _script(context: typer.Context, options: ScriptOptions) -> int:
    """Run a program written for a GPU, unmodified, on a machine; then show its launches.

    Options of kernbench come before FILE, arguments of the program after it. Its PyTorch tensors
    stay on the CPU and stand for the device's; triton.testing.do_bench gives modeled time.
    """
    return run_script(options)
