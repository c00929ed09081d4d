"""``kernbench serve-bench``: an engine that serves a load, on a machine (ADR-0269)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kernbench.cli import options as common
from kernbench.cli.registry import options_command

PLACE = 32
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class ServeOptions(common.ProgramOptions):
    """What ``kernbench serve-bench`` was given."""

    program: Annotated[
        str,
        typer.Argument(
            metavar="ENGINE", help="vllm, or a Python file that defines make_engine(settings)."
        ),
    ]
    machine: common.Machine = "h100-sxm"
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Compute numbers, or time only.")
    ] = False
    model: Annotated[
        str,
        typer.Option(metavar="NAME|CONFIG", help="As of kernbench plan, or a config.json."),
    ] = "llama-3-8b"
    tp: Annotated[str, typer.Option(metavar="N", help="Devices that each layer is split over.")] = (
        "1"
    )
    quantization: Annotated[
        str, typer.Option(metavar="NAME", help="As the engine calls it: fp8.")
    ] = ""
    max_model_len: Annotated[
        str, typer.Option(metavar="N", help="Tokens of a request at most [default: the model's].")
    ] = ""
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An argument of the engine's own, such as max_num_seqs=64; repeatable.",
        ),
    ] = None
    rate: Annotated[
        str,
        typer.Option(
            metavar="R,...", help="Poisson arrivals of so many requests a second; inf: all at once."
        ),
    ] = ""
    burst: Annotated[
        str, typer.Option(metavar="N", help="With --rate: so many come at a time.")
    ] = ""
    concurrency: Annotated[
        str,
        typer.Option(metavar="C,...", help="A closed loop: so many clients, one request each."),
    ] = ""
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Recorded arrivals: BurstGPT's or Azure's columns."),
    ] = None
    skip_holes: Annotated[
        bool, typer.Option("--skip-holes", help="Leave out rows of the trace that lack a number.")
    ] = False
    input: Annotated[str, typer.Option(metavar="L|A:B", help="Tokens of a prompt.")] = ""
    output: Annotated[str, typer.Option(metavar="L|A:B", help="Tokens that are made.")] = ""
    requests: Annotated[
        str, typer.Option(metavar="N", help="How many requests [default: 32; of a trace, all].")
    ] = ""
    slo: Annotated[
        str,
        typer.Option(metavar="NAME=TIME,...", help="Bounds for goodput: ttft=200ms,tpot=50ms."),
    ] = ""
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="Look for the largest rate that keeps to --slo.")
    ] = False
    attained: Annotated[
        str, typer.Option(metavar="SHARE", help="Of the requests, that must keep to it.")
    ] = ""
    seed: Annotated[str, typer.Option(metavar="N", help="Seed of arrivals and lengths.")] = ""
    warm_up: Annotated[
        str, typer.Option(metavar="N", help="Requests before, that nobody counts [default: 1].")
    ] = ""
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a row of each request.")
    ] = None


@options_command(app, "serve-bench")
def _serve_bench(context: typer.Context, options: ServeOptions) -> int:
    """Let an engine serve a load on a machine, and say how long requests wait.

    kernbench serve-bench vllm --model llama-3-8b --machine h100-sxm --rate 4,8 --input 1024
    --output 128 --requests 64 --slo ttft=200ms,tpot=20ms

    The engine is the one that is installed; its scheduler, caches and kernels run in simulated
    time. Loads of a list come one after another, each with an empty cache of prompts. Requests
    are drawn by --seed: the same command gives the same bytes.
    """
    from kernbench.cli.programs.serving import serve_bench

    return serve_bench(options)
