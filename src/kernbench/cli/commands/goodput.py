"""``kernbench goodput``: what failures and checkpoints leave of a long run's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import guarded_command, show_or_write
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.cli.plans.goodput import Goodput, IntervalReport
    from kernbench.hardware import Machine

PLACE = 46
app = typer.Typer()
_LLAMA_HOURS = 54 * 24 * 16384 / 419
"""419 unexpected interruptions of 16,384 H100 in 54 days."""
_MINUTE_S, _HOUR_S = 60, 3600


@dataclass(frozen=True, kw_only=True)
class GoodputOptions(common.AnalysisOptions):
    """What ``kernbench goodput`` was given."""

    run: str | None = common.argument(
        None, metavar="[RUN]", help="A run that --save has kept, of --steps steps."
    )
    steps: int = common.option(1, metavar="N", min=1, help="Steps of RUN.", needs=("run",))
    step: float | None = common.option(
        None, metavar="SECONDS", help="Time of a step [default: RUN's]."
    )
    devices: int | None = common.option(
        None, metavar="N", min=1, help="Devices [default: ranks of RUN]."
    )
    machine: str | None = common.option(
        None,
        metavar="NAME|FILE",
        help="Whose storage takes --checkpoint-gb; else RUN's.",
        needs=("checkpoint_gb",),
    )
    settings: common.Set = common.only_with(None, "checkpoint_gb")
    mtbf_hours: float = common.option(
        round(_LLAMA_HOURS),
        metavar="HOURS",
        help="Mean time between failures of one device; the default is that of Llama 3's "
        "training: 419 interruptions of 16,384 GPUs in 54 days.",
    )
    checkpoint_s: float | None = common.option(
        None, metavar="SECONDS", help="For how long a checkpoint stops the training."
    )
    checkpoint_gb: float | None = common.option(
        None, metavar="GB", help="Size of a checkpoint, which the machine's storage takes."
    )
    restart_s: float = common.option(
        300.0, metavar="SECONDS", help="From a failure to the first step after it."
    )
    every: float | None = common.option(
        None, metavar="SECONDS", help="Work between checkpoints [default: the best]."
    )
    hours: float = common.option(
        24.0, metavar="HOURS", help="Length of the histories that are simulated."
    )
    histories: int = common.option(500, metavar="N", min=20, help="How many of them.")
    seed: int = common.option(0, help="Seed of them.")


@guarded_command(app, "goodput")
def _goodput(options: GoodputOptions) -> int:
    """Say how much of its time a long run works for good when devices fail, and when to checkpoint.

    kernbench goodput --devices 16384 --checkpoint-s 60 --step 12

    By Young's and Daly's closed forms, and by simulated histories beside them.
    """
    from kernbench.cli.plans.goodput import Failing, goodput_of

    machine, devices, step_s = _from_run(options)
    numbers = {
        "--mtbf-hours": options.mtbf_hours,
        "--restart-s": options.restart_s,
        "--hours": options.hours,
        "--step": step_s,
        "--every": options.every,
        "--checkpoint-s": options.checkpoint_s,
        "--checkpoint-gb": options.checkpoint_gb,
    }
    for name, number in numbers.items():
        may_be_zero = name == "--restart-s"
        if number is not None and not (0 < number < 1e12 or (may_be_zero and number == 0)):
            what = "0 or more" if may_be_zero else "above 0"
            raise UsageError(f"{name} must be {what}, but got {number:g}")
    failing = Failing(
        mtbf_s=options.mtbf_hours * _HOUR_S / devices,
        checkpoint_s=_checkpoint_s(options, machine, devices),
        restart_s=options.restart_s,
    )
    goodput = goodput_of(
        failing,
        devices,
        options.hours,
        options.seed,
        step_s=step_s,
        interval_s=options.every,
        histories=options.histories,
    )
    return show_or_write(goodput, options.json, lambda console: print_goodput(goodput, console))


def _from_run(options: GoodputOptions) -> tuple[Machine | None, int, float | None]:
    """Return the machine, the devices and the time of a step, as far as they are known.

    Raises:
        UsageError: There is no number of devices.
    """
    saved = None
    if options.run is not None:
        from kernbench.saved import load_run

        saved = load_run(options.run)
    machine = None if saved is None else saved.machine
    if options.machine is not None or (machine is not None and options.settings):
        name = machine if options.machine is None else options.machine
        assert name is not None
        machine, _ = common.load_changed(name, None, options.settings)
    devices, step_s = options.devices, options.step
    if saved is not None:
        devices = devices or saved.ranks
        step_s = step_s or saved.log.end_ps / 10**12 / options.steps
    if devices is None:
        raise UsageError("goodput needs --devices N, or a RUN that --save has kept")
    return machine, devices, step_s


def _checkpoint_s(options: GoodputOptions, machine: Machine | None, devices: int) -> float:
    """Return for how long a checkpoint stops the training.

    Raises:
        UsageError: It is not said, or said twice.
        MachineError: The machine has no storage.
    """
    if (options.checkpoint_s is None) == (options.checkpoint_gb is None):
        raise UsageError(
            "goodput needs either --checkpoint-s SECONDS or --checkpoint-gb GB, the size that the "
            "machine's storage takes"
        )
    if options.checkpoint_gb is None:
        assert options.checkpoint_s is not None
        return options.checkpoint_s
    if machine is None:
        raise UsageError("--checkpoint-gb needs --machine NAME, or a RUN: whose storage takes it")
    return machine.write_s(options.checkpoint_gb, devices)


def print_goodput(goodput: Goodput, console: Console) -> None:
    """Print the goodput as a table."""
    from rich.text import Text

    from kernbench.analysis import TableColumn, fitting_table

    has_steps = goodput["best"]["steps"] is not None
    columns = [
        TableColumn("a checkpoint after"),
        *([TableColumn("steps")] if has_steps else []),
        TableColumn("goodput"),
        TableColumn("simulated"),
        TableColumn("5 % below"),
        TableColumn("5 % above"),
    ]

    def cells(interval_report: IntervalReport) -> list[str]:
        steps = [f"{interval_report['steps']:,}"] if has_steps else []
        shares = (
            interval_report["goodput"],
            interval_report["simulated"],
            interval_report["low"],
            interval_report["high"],
        )
        return [
            _shown(interval_report["interval_s"]),
            *steps,
            *(f"{share:.1%}" for share in shares),
        ]

    console.print(
        Text(
            f"\n{goodput['devices']:,} devices: a failure every {_shown(goodput['mtbf_s'])} on "
            f"average; a checkpoint takes {_shown(goodput['checkpoint_s'])}, a restart "
            f"{_shown(goodput['restart_s'])}"
        )
    )
    console.print("", fitting_table(console, columns, map(cells, goodput["intervals"])), sep="\n")
    best = goodput["best"]
    console.print(
        Text(
            f"\nbest: a checkpoint after {_shown(best['interval_s'])} of work, "
            f"{best['goodput']:.1%} (Young: {_shown(goodput['young_s'])}, Daly: "
            f"{_shown(goodput['daly_s'])}); histories of {goodput['hours']:g} h "
            f"by seed {goodput['seed']}"
        )
    )


def _shown(time_s: float) -> str:
    """Return a time in words.

    >>> _shown(90.0), _shown(0.5), _shown(7200.0)
    ('1.5 min', '0.5 s', '2 h')
    """
    for unit_s, unit in ((_HOUR_S, "h"), (_MINUTE_S, "min")):
        if time_s >= unit_s:
            return f"{time_s / unit_s:.3g} {unit}"
    return f"{time_s:.3g} s"
