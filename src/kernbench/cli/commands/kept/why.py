"""``kernbench why``: where the time of a saved run went, and its critical path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import guarded_command, show_or_write
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class WhyOptions(common.RangeOptions):
    """What ``kernbench why`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    path: bool = common.option(
        False,
        "--path",
        help="Every segment of the critical path, one by one.",
        not_with=("energy", "communication", "lines", "modules"),
    )
    energy: bool = common.option(
        False,
        "--energy",
        help="Where its energy went, and what each kernel draws.",
        not_with=("communication", "lines", "modules"),
    )
    communication: bool = common.option(
        False,
        "--communication",
        help="How much each rank sends to each other one, in the whole run.",
        not_with=("lines", "modules", "range", "steps"),
    )
    lines: str | None = common.option(
        None,
        metavar="[KERNEL]",
        help="What each line of the program caused; the lines of KERNEL, with their time.",
    )
    modules: bool = common.option(
        False,
        "--modules",
        help="What each module of the program caused, as a tree.",
        not_with=("lines",),
    )


PLACE = 20
OF_PROGRAM = ""
"""In place of a kernel: the program itself."""
app = typer.Typer()


class _WhyCommand(TyperCommand):
    """The command, in which --lines may stand without the name of a kernel."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asked = [place for place, argument in enumerate(args) if argument == "--lines"]
        for place in reversed(asked):
            if place + 1 == len(args) or args[place + 1].startswith("-"):
                args = [*args[: place + 1], OF_PROGRAM, *args[place + 1 :]]
        return super().parse_args(ctx, args)


@guarded_command(app, "why", cls=_WhyCommand)
def _why(options: WhyOptions) -> int:
    """Say where the time of a saved run went: by resource, by kernel, along the critical path.

    kernbench why train.run

    kernbench why train.run --lines
    """
    from kernbench.analysis import (
        communication,
        explain,
        kernel_lines,
        print_communication,
        print_energy,
        print_lines,
        print_modules,
        print_program_lines,
        print_why,
        program_lines,
        program_modules,
        saved_energy,
    )
    from kernbench.retiming import host_findings, print_host_findings
    from kernbench.saved import load_run

    run = load_run(options.run)
    part = options.part(run.log, is_steady=not (options.energy or options.communication))
    if options.lines == OF_PROGRAM:
        caused = program_lines(run.log, run.ranks, part.window)
        return show_or_write(
            caused, options.json, lambda console: print_program_lines(caused, run.sources, console)
        )
    if options.modules:
        modules = program_modules(run.log, run.ranks, part.window)
        return show_or_write(modules, options.json, lambda console: print_modules(modules, console))
    if options.lines is not None:
        lines = kernel_lines(run.log, options.lines, part.window)
        return show_or_write(
            lines, options.json, lambda console: print_lines(lines, run.sources, console)
        )
    if options.communication:
        if run.log.running is not None:
            raise UsageError(
                f"{options.run}: of a folded run it is not known who sends to whom; save it "
                "without --fold"
            )
        return show_or_write(
            communication(run.log, run.ranks),
            options.json,
            lambda console: print_communication(run.log, run.ranks, console),
        )
    if options.energy:
        energy = saved_energy(run, part.window)
        cost = run.report.get("cost_usd")
        if cost is not None and part.window is not None:
            cost *= part.window.mean_ps / run.log.end_ps
        energy_report = energy if cost is None else {**energy, "cost_usd": cost}
        return show_or_write(
            energy_report,
            options.json,
            lambda console: print_energy(energy, run.machine.name, console, cost),
        )
    why = explain(run.log, run.machine, run.ranks, run.report.get("accuracy"), part)
    changes = host_findings(run, part)

    def show(console: Console) -> None:
        print_why(why, console, whole_path=options.path)
        if changes is not None:
            print_host_findings(changes, console)

    tried = {} if changes is None else {"host_changes": changes["findings"]}
    return show_or_write({**why, **tried}, options.json, show)
