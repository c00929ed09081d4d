"""``kernbench kernel``: what becomes of a kernel (ADR-0052)."""

from __future__ import annotations

from typing import Annotated

import typer

from kernbench.cli import options as common
from kernbench.cli.registry import Listing

PLACE = 70
app = typer.Typer(
    name="kernel",
    help="Look into a kernel without running it on data.",
    no_args_is_help=True,
    cls=Listing,
)


@app.command("show")
def _show_kernel(
    what: Annotated[
        str,
        typer.Argument(metavar="FILE:NAME", help="A kernel that FILE launches; or a .ttir file."),
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", "-a", metavar="ARG", help="NAME=VALUE for a bench; else FILE's arguments."
        ),
    ] = None,
    machine: common.Machine = "ahbm",
    ranks: common.Ranks = None,
    num_stages: Annotated[
        int, typer.Option(min=1, help="Of a .ttir file: stages of its pipelined loops.")
    ] = 3,
    every: Annotated[
        bool, typer.Option("--all", help="Every distinct launch, not only the first.")
    ] = False,
    debug: common.Debug = False,
) -> None:
    """Show a kernel's TTIR, its commands, its TCM use and its modeled schedule.

    kernbench kernel show norm.py:rms_norm --machine h100-sxm

    FILE is a bench or any program that launches the kernel; it runs without data, up to the first
    launch of the kernel.
    """
    from kernbench.cli.kernel_show import ShowOptions, show_kernel

    asked = ShowOptions(
        what=what,
        arguments=tuple(arg or ()),
        machine=machine,
        ranks=ranks,
        num_stages=num_stages,
        all=every,
        debug=debug,
    )
    raise typer.Exit(show_kernel(asked))
