"""``kernbench kernel``: what becomes of a kernel (ADR-0052)."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import guarded_command
from kernbench.cli.registry import Listing

PLACE = 70
app = typer.Typer(
    name="kernel",
    help="Look into a kernel without running it on data.",
    no_args_is_help=True,
    cls=Listing,
)


@dataclass(frozen=True, kw_only=True)
class ShowOptions(common.CommandOptions):
    """What ``kernbench kernel show`` was given."""

    what: str = common.argument(
        ..., metavar="FILE:NAME", help="A kernel that FILE launches; or a .ttir file."
    )
    arg: list[str] | None = common.option(
        None, "--arg", "-a", metavar="ARG", help="NAME=VALUE for a bench; else FILE's arguments."
    )
    machine: common.Machine = "ahbm"
    ranks: common.Ranks = None
    num_stages: int = common.option(
        3, min=1, help="Of a .ttir file: stages of its pipelined loops."
    )
    all: bool = common.option(False, "--all", help="Every distinct launch, not only the first.")
    debug: common.Debug = False


@guarded_command(app, "show")
def _show_kernel(options: ShowOptions) -> int:
    """Show a kernel's TTIR, its commands, its TCM use and its modeled schedule.

    kernbench kernel show norm.py:rms_norm --machine h100-sxm

    FILE is a bench or any program that launches the kernel; it runs without data, up to the first
    launch of the kernel.
    """
    from kernbench.cli.kernel_show import show_kernel

    return show_kernel(options)
