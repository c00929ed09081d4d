"""``kernbench plan``: which way of splitting a model over devices is fastest (ADR-0154)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernbench.cli import options as common
from kernbench.cli.console.progress import progress
from kernbench.cli.programs.reporting import DONE, STDOUT, guarded, show_or_write
from kernbench.cli.registry import given_options, options_command
from kernbench.errors import UnknownNameError, UsageError, nearest

if TYPE_CHECKING:
    from kernbench.plans import AllowedSizes

PLACE = 45
app = typer.Typer()

Sizes = Annotated[str | None, typer.Option(metavar="N,...", help="Look at these sizes only.")]
Count = Annotated[int, typer.Option(min=1)]


@dataclass(frozen=True, kw_only=True)
class PlanOptions(common.CommandOptions):
    """What ``kernbench plan`` was given."""

    program: str | None = common.argument(
        None,
        metavar="[FILE]",
        help="A PyTorch program whose options say how it is split; in place of --model.",
        show_default=False,
    )
    args: common.ArgsOfAll = None
    model: str | None = common.option(
        None, metavar="NAME|FILE", help="A known model, or a config.json."
    )
    machine: str = common.option(
        ...,
        metavar="NAME|FILE",
        help="A preset, or a YAML file.",
        autocompletion=common.machines_from,
    )
    devices: int = common.option(..., min=1, help="How many of them.")
    grid: list[str] | None = common.option(
        None, "--grid", "-g", metavar="NAME=VALUE,...", help="Other options of FILE to try."
    )
    workers: common.Workers = None
    trains: bool = common.option(True, "--train/--serve", help="What they do.")
    batch: int | None = common.option(
        None, min=1, help="Sequences of a step [default: one per device]."
    )
    seq: int = common.option(4096, min=1, help="Tokens of a sequence, or of a prompt.")
    new_tokens: int = common.option(
        256, min=1, help="Tokens that a server makes for each sequence.", not_with=("trains",)
    )
    tp: Sizes = None
    pp: Sizes = None
    cp: Sizes = None
    dp: Sizes = None
    ep: Sizes = None
    shard: str | None = common.option(
        None, metavar="NAME,...", help="How replicas may share state: zero3,zero2,hsdp,zero1,ddp."
    )
    run: int = common.option(
        12, metavar="N", min=0, help="Of how many of the best the programs are run."
    )
    compile: bool = common.option(False, "--compile", help="Compile the layers of those programs.")
    write: str | None = common.option(
        None, metavar="DIR", help="Write the program of the best, and its configuration."
    )
    minimize: str = common.option(
        "time", metavar="time|energy|cost", help="By what layouts are ranked."
    )
    price: common.Price = None
    top: int = common.option(8, min=1, help="How many layouts are shown.")
    json: str | None = common.option(
        None, metavar="FILE|-", help="Write all layouts as JSON; - is stdout."
    )
    debug: common.Debug = False


@options_command(app, "plan")
def _plan(context: typer.Context, options: PlanOptions) -> int:
    """Rank the ways of splitting a model over devices, by modeled time.

    kernbench plan --model llama-3-70b --machine h100-sxm --devices 64

    kernbench plan train.py --machine h100-sxm --devices 64 --grid batch=8,16 -- --hidden 4096

    Of a model all sizes of tensor (TP, inside a node), pipeline (PP), context (CP), data (DP) and
    expert parallelism (EP) that divide the devices and the model, with and without sequence
    parallelism (SP) and recomputation of activations, several micro-batches, and ways to share
    state (FSDP2, HSDP, ZeRO-1); those that fit into memory are timed by their parts, and of the
    best of these PyTorch programs are run, folded. Of a program of yours (FILE), its own options
    for these sizes, as its text shows them, get all values that divide the devices, and each way
    is run, folded.
    """

    def start() -> int:
        refuse_others(given_options(context), options.program is not None)
        return _start(options) if options.program is None else _plan_program(options)

    return guarded(start, options.debug, usage=True)


_OF_MODEL = frozenset(
    {"model", "trains", "batch", "seq", "new_tokens", "shard", "run", "compile", "write"}
)
_OF_PROGRAM = frozenset({"args", "grid", "workers"})


def refuse_others(asked: Iterable[tuple[str, str]], is_program: bool) -> None:
    """Refuse options of models for programs, and those of programs for models.

    Raises:
        UsageError: There is one; or neither a model nor a program was named.
    """
    names = dict(asked)
    if not is_program and "model" not in names:
        raise UsageError("name what is planned: --model NAME, or a PyTorch program")
    for name, text in names.items():
        if name in (_OF_MODEL if is_program else _OF_PROGRAM):
            kind = "a model" if is_program else "a program of yours"
            hint = "; options of the program come behind --" if is_program else ""
            raise UsageError(f"{text} is for a plan of {kind}{hint}")


def _plan_program(options: PlanOptions) -> int:
    from kernbench.cli.plans.ranking import check_goal
    from kernbench.cli.plans.scripts import plan_script, print_script_plan
    from kernbench.cli.sweeps.points import Settings
    from kernbench.cli.sweeps.running import Progress
    from kernbench.cli.sweeps.study import parse_axes
    from kernbench.hardware import file_of
    from kernbench.plans import node_of

    assert options.program is not None
    name = file_of(options.machine)
    machine, _ = common.load_changed(f"{name}:{options.devices}", options.devices, None)
    price = options.price
    if price is None:
        check_goal(options.minimize, machine)
    more = parse_axes(options.grid or ())
    settings = Settings(
        machine=name,
        ranks=options.devices,
        data=False,
        fold=options.devices > 1,
        args=options.args or (),
        forced=frozenset(more),
        changes={} if price is None else {"usd_per_device_hour": repr(price)},
    )
    node = node_of(machine) or options.devices
    state = Progress(total=1, what="splits")
    with progress(state.describe, state.share):
        script = plan_script(
            *(options.program, settings, options.devices, node, _limits(options)),
            *(more, options.workers, options.minimize, state),
        )
    show_or_write(
        {"rows": list(script.rows), "command": script.command},
        options.json,
        lambda console: print_script_plan(script, console, options.top, options.minimize),
    )
    return DONE


def _start(options: PlanOptions) -> int:
    from rich.console import Console

    from kernbench.cli.plans.ranking import as_json, check_goal, print_ranking, rank, run_best
    from kernbench.cli.plans.running import LayoutPrograms
    from kernbench.hardware import file_of
    from kernbench.outputs import Outputs
    from kernbench.plans import Job, model_of

    limits = _limits(options)
    assert options.model is not None
    model = model_of(options.model)
    name = f"{file_of(options.machine)}:{options.devices}"
    machine, _ = common.load_changed(name, options.devices, None, options.price)
    check_goal(options.minimize, machine)
    job = Job(
        trains=options.trains,
        devices=options.devices,
        batch=options.batch or options.devices,
        seq=options.seq,
        new_tokens=0 if options.trains else options.new_tokens,
    )
    asked = None if options.json == STDOUT else options.json
    if options.write is not None and not options.trains:
        raise UsageError("--write writes a program that trains: leave --serve out")
    programs = LayoutPrograms(
        model=model,
        job=job,
        machine=machine,
        file=file_of(options.machine),
        compiles=options.compile,
    )
    state = ["counting layouts"]

    def say(text: str) -> None:
        state[0] = text

    with Outputs({"--json": asked}, [options.model, file_of(options.machine)]) as outputs:
        with progress(lambda: state[0]):
            ranking = rank(model, job, machine, limits, options.minimize, say)
            ranking = run_best(ranking, options.run, programs, options.minimize, say)
        text = json.dumps(as_json(ranking), indent=2)
        if "--json" in outputs:
            with outputs.writing("--json") as file:
                file.write(f"{text}\n".encode())
            outputs.publish()
    if options.json == STDOUT:
        print(text)
    else:
        console = Console(file=sys.stdout, highlight=False, markup=False)
        print_ranking(ranking, console, options.top, options.minimize)
    if options.write is not None:
        print(f"to run the best: {programs.write(ranking.timed[0], options.write)}")
    return DONE


def _limits(options: PlanOptions) -> AllowedSizes:
    from kernbench.plans import SHARDS, AllowedSizes

    sizes: dict[str, tuple[int, ...] | None] = {}
    for name in ("tp", "pp", "cp", "dp", "ep"):
        text = getattr(options, name)
        parts = [] if text is None else text.split(",")
        if not all(part.isdecimal() and int(part) for part in parts):
            raise UsageError(f"--{name} must be sizes such as 4 or 2,4,8, but got {text!r}")
        sizes[name] = None if text is None else tuple(map(int, parts))
    shards = None if options.shard is None else tuple(options.shard.split(","))
    for name in shards or ():
        if name not in SHARDS:
            raise UnknownNameError(f"--shard {name}: {nearest(name, SHARDS)}")
    return AllowedSizes(sizes, shards)
