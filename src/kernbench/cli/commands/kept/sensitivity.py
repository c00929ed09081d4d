"""``kernbench sensitivity``: what a saved run gains by each key of its machine."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import guarded_command, show_or_write


@dataclass(frozen=True, kw_only=True)
class SensitivityOptions(common.RangeOptions):
    """What ``kernbench sensitivity`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    by: str = common.option("10%", metavar="10%", help="How much more of each key.")
    key: str = common.option(
        "", metavar="KEY", help="The key, or the group of keys, that is tried."
    )
    top: int = common.option(20, metavar="N", min=1, help="How many keys are shown.")


PLACE = 24
app = typer.Typer()


@guarded_command(app, "sensitivity")
def _sensitivity(options: SensitivityOptions) -> int:
    """Say what a saved run gains by a tenth more of each key of its machine.

    Each run is done anew, without the program. Beside the gain stand what a device draws more, what
    that costs, and the area where the machine's file has area_mm2.

    kernbench sensitivity mlp.run

    kernbench sensitivity mlp.run --key sip.cache --by 50% --range all
    """
    from kernbench.cli.commands.kept.diff import parse_share
    from kernbench.cli.console.progress import progress
    from kernbench.retiming import print_sensitivity, sensitivity
    from kernbench.saved import load_run

    by = parse_share(options.by, "--by")
    saved = load_run(options.run)
    part = options.part(saved.log)
    state = [0, 1]

    def step(done: int, whole: int) -> None:
        state[:] = done, whole

    with progress(lambda: f"{state[0]} of {state[1]} keys", lambda: state[0] / state[1]):
        result = sensitivity(saved, by, options.key, step, part)
    return show_or_write(
        result, options.json, lambda console: print_sensitivity(result, console, options.top)
    )
