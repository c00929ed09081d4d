"""``kernbench retime``: a saved run on another machine, without its program."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import (
    DONE,
    guarded,
    guarded_command,
    make_room,
    run_and_report,
)
from kernbench.hardware import Machine


@dataclass(frozen=True, kw_only=True)
class RetimeOptions(common.ReportOptions):
    """What ``kernbench retime`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    machine: str | None = common.option(
        None,
        metavar="NAME|FILE",
        help="Machine: a preset, NAME:SIPS, or a YAML file; the run's, if it is not given.",
        autocompletion=common.machines_from,
    )
    program: str = common.option("", hidden=True)
    ranks_per_node: int | None = common.option(
        None, metavar="N", help="Divide the ranks among other nodes (links.scale_out), N in each."
    )


PLACE = 23
app = typer.Typer()


@guarded_command(app, "retime")
def _retime(options: RetimeOptions) -> int:
    """Time a saved run on another machine, or with keys of its machine changed.

    kernbench retime train.run --machine h200

    kernbench retime train.run --set links.bandwidth_gbps=2x

    The program is not needed: what its ranks launched, moved and waited for is scheduled anew,
    each kernel and collective as that machine takes it. Decisions of the program stay as they
    were.
    """
    from dataclasses import replace

    from kernbench.hardware import divided_machine
    from kernbench.retiming import Retiming
    from kernbench.saved import load_run

    saved = load_run(options.run)
    name: str | Machine = saved.machine if options.machine is None else options.machine
    ranks = None if options.machine is None else saved.ranks
    machine, changes = options.load_machine(name, ranks)
    nodes = options.ranks_per_node
    if nodes is not None:
        machine = divided_machine(machine, nodes, f"--ranks-per-node {nodes}")
        changes.append(f"{machine.name} was divided into nodes of {nodes} ranks")
    with make_room(options, options.machine, [options.run]) as outputs:
        keeps_memory = options.memory or options.save is not None
        retiming = Retiming(saved, machine, keeps_memory=keeps_memory)
        context = retiming.context
        context.run.remarks.append(lambda: changes)

        def work() -> int:
            retiming.work()
            return DONE

        asked = replace(options, program=saved.program)
        return guarded(lambda: run_and_report(context, asked, outputs, work), options.debug)
