"""``kernbench plan``: which way of splitting a model over devices is fastest (ADR-0154)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernbench.cli import options as given
from kernbench.cli.console.progress import progress
from kernbench.cli.programs.reporting import DONE, STDOUT, guarded
from kernbench.cli.registry import options_command
from kernbench.errors import UnknownNameError, UsageError, nearest

if TYPE_CHECKING:
    from kernbench.cli.plans.ranking import Ranking
    from kernbench.plans import AllowedSizes, Job, TimedLayout

PLACE = 45
app = typer.Typer()

Sizes = Annotated[str | None, typer.Option(metavar="N,...", help="Look at these sizes only.")]
_WIDE = 100
"""From so many columns on, energy and cost are shown whatever is minimized."""
Count = Annotated[int, typer.Option(min=1)]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What ``kernbench plan`` was given."""

    model: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A known model, or a config.json.")
    ]
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="A preset, or a YAML file.",
            autocompletion=given.machines_from,
        ),
    ]
    devices: Annotated[int, typer.Option(min=1, help="How many of them.")]
    trains: Annotated[bool, typer.Option("--train/--serve", help="What they do.")] = True
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences of a step [default: one per device].")
    ] = None
    seq: Annotated[int, typer.Option(min=1, help="Tokens of a sequence, or of a prompt.")] = 4096
    new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that a server makes for each sequence.")
    ] = 256
    tp: Sizes = None
    pp: Sizes = None
    cp: Sizes = None
    dp: Sizes = None
    ep: Sizes = None
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="How replicas may share state: zero3,zero2,hsdp,zero1,ddp."
        ),
    ] = None
    run: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of how many of the best the programs are run.")
    ] = 12
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the layers of those programs.")
    ] = False
    write: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the program of the best, and its configuration."),
    ] = None
    minimize: Annotated[
        str, typer.Option(metavar="time|energy|cost", help="By what layouts are ranked.")
    ] = "time"
    price: given.Price = None
    top: Annotated[int, typer.Option(min=1, help="How many layouts are shown.")] = 8
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write all layouts as JSON; - is stdout.")
    ] = None
    debug: given.Debug = False
    own_options: frozenset[str] = frozenset()
    """The names of the command's options."""


@options_command(app, "plan")
def _plan(context: typer.Context, options: PlanOptions) -> int:
    """Rank the ways of splitting a model over devices, by modeled time.

    kernbench plan --model llama-3-70b --machine h100-sxm --devices 64

    All sizes of tensor (TP, inside a node), pipeline (PP), context (CP), data (DP) and expert
    parallelism (EP) that divide the devices and the model, with and without sequence parallelism
    (SP) and recomputation of activations, several micro-batches, and ways to share state (FSDP2,
    HSDP, ZeRO-1); those that fit into memory are timed by their parts, and of the best of these
    PyTorch programs are run, folded.
    """
    return guarded(lambda: _start(options), options.debug, usage=True)


def _start(options: PlanOptions) -> int:
    from kernbench.cli.plans.ranking import as_json, check_goal, rank, run_best
    from kernbench.cli.plans.running import LayoutPrograms
    from kernbench.hardware import file_of
    from kernbench.outputs import Outputs
    from kernbench.plans import Job, model_of

    limits = _limits(options)
    model = model_of(options.model)
    name = f"{file_of(options.machine)}:{options.devices}"
    machine, _ = given.load_changed(name, options.devices, None, options.price)
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
        _show(ranking, job, options.top, options.minimize)
    if options.write is not None:
        print(f"to run the best: {programs.write(ranking.timed[0], options.write)}")
    return DONE


def _behind(each: TimedLayout, best: TimedLayout, goal: str) -> str:
    """Return how much more of the goal a layout takes than the best, and of time."""
    from kernbench.cli.plans.ranking import GOALS

    slower = f"{each.seconds / best.seconds - 1:+.1%}"
    if goal == "time":
        return slower
    more = (GOALS[goal](each) or 0.0) / (GOALS[goal](best) or 1.0) - 1
    return f"{goal} {more:+.1%}, time {slower}"


def _per_token(each: TimedLayout, name: str) -> str:
    if name == "J/token":
        return f"{(each.joules or 0.0) / each.tokens:.3g}"
    return f"{1e6 * (each.usd or 0.0) / each.tokens:.3g}"


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


def _show(ranking: Ranking, job: Job, top: int, goal: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from kernbench.cli.plans.ranking import remarks, seconds, why_best, why_slower
    from kernbench.plans import GIB

    model, machine, best = ranking.model, ranking.machine, ranking.timed[0]
    what = f"a step of {job.batch} x {job.seq} tokens"
    if not job.trains:
        what = f"{job.batch} sequences, prompts of {job.seq} tokens, {job.new_tokens} new ones each"
    active = f" ({model.active_parameters / 1e9:.1f}B active)" if model.experts else ""
    print(
        f"{model.name}, {model.parameters / 1e9:.1f}B parameters{active}, on {job.devices} x ",
        end="",
    )
    print(f"{machine.name}: {what}\n")
    table = Table(box=None, pad_edge=False, header_style="")
    # Where there is little room its words go on in the next line; numbers stay whole.
    table.add_column("layout", overflow="fold")
    for title in ("GiB", "time", "tokens/s", "MFU"):
        table.add_column(title, justify="right", no_wrap=True)
    has_runs = any(each.is_run for each in ranking.timed)
    if has_runs:
        table.add_column("", no_wrap=True)
    console = Console(file=sys.stdout, highlight=False, markup=False)
    per_token = {"energy": ("J/token", best.joules), "cost": ("USD/Mtoken", best.usd)}
    has_room = console.width >= _WIDE
    shows = [
        name
        for each, (name, known) in per_token.items()
        if known is not None and (has_room or each == goal)
    ]
    for name in (*shows, *best.more):
        table.add_column(name, justify="right", no_wrap=True)
    for each in ranking.timed[:top]:
        table.add_row(
            each.layout.label,
            f"{each.total_bytes / GIB:.1f}",
            seconds(each.seconds),
            f"{each.tokens_per_second:,.0f}",
            f"{ranking.mfu(each):.1%}",
            *(["run" if each.is_run else "parts"] if has_runs else []),
            *(_per_token(each, name) for name in shows),
            *(seconds(value) for value in each.more.values()),
        )
    console.print(table)
    kinds = ", ".join(f"{name} {value / GIB:.1f}" for name, value in best.memory.items())
    print(f"\nbest: {best.layout.label}")
    print(f"  time: {why_best(best)}")
    print(f"  GiB of {machine.sip.hbm_bytes / GIB:.0f}: {kinds}")
    sent = best.collective_bytes / 1e9
    print(f"  collectives of a rank: {best.collectives:,}, {sent:,.1f} GB of messages")
    # Programs are compared with programs.
    nexts = [each for each in ranking.timed[1:top] if each.is_run == best.is_run]
    if nexts:
        print("why the next are slower:" if goal == "time" else "the next, beside the best:")
    for each in nexts:
        print(f"  {each.layout.label}: {_behind(each, best, goal)}; {why_slower(each, best)}")
    print(f"\n{len(ranking.timed)} layouts fit, {ranking.too_large} do not", end="")
    if ranking.nearest is not None:
        label, needed = ranking.nearest
        print(f"; of those {label} needs least: {needed / GIB:.1f} GiB", end="")
    print()
    for remark in remarks(ranking):
        print(f"note: {remark}")
