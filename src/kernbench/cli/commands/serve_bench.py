"""``kernbench serve-bench``: an engine that serves a load, on a machine (ADR-0269)."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.registry import options_command

PLACE = 32
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class ServeOptions(common.ProgramOptions):
    """What ``kernbench serve-bench`` was given."""

    program: str = common.argument(
        "", metavar="ENGINE", help="vllm, or a Python file that defines make_engine(settings)."
    )
    machine: common.Machine = "h100-sxm"
    data: bool = common.option(False, "--data/--no-data", help="Compute numbers, or time only.")
    model: str = common.option(
        "llama-3-8b", metavar="NAME|CONFIG", help="As of kernbench plan, or a config.json."
    )
    tp: str = common.option("1", metavar="N", help="Devices that each layer is split over.")
    fold: bool = common.option(
        False, "--fold", help="Run one of all ranks that a layer is split over, for all of them."
    )
    quantization: str = common.option("", metavar="NAME", help="As the engine calls it: fp8.")
    max_model_len: str = common.option(
        "", metavar="N", help="Tokens of a request at most [default: the model's]."
    )
    engine_arg: list[str] | None = common.option(
        None,
        metavar="NAME=VALUE",
        help="An argument of the engine's own, such as max_num_seqs=64; repeatable.",
    )
    rate: str = common.option(
        "", metavar="R,...", help="Poisson arrivals of so many requests a second; inf: all at once."
    )
    burst: str = common.option("", metavar="N", help="With --rate: so many come at a time.")
    concurrency: str = common.option(
        "", metavar="C,...", help="A closed loop: so many clients, one request each."
    )
    trace: str | None = common.option(
        None, metavar="FILE", help="Recorded arrivals: BurstGPT's or Azure's columns."
    )
    skip_holes: bool = common.option(
        False, "--skip-holes", help="Leave out rows of the trace that lack a number."
    )
    input: str = common.option("", metavar="L|A:B", help="Tokens of a prompt.")
    output: str = common.option("", metavar="L|A:B", help="Tokens that are made.")
    requests: str = common.option(
        "", metavar="N", help="How many requests [default: 32; of a trace, all]."
    )
    slo: str = common.option(
        "", metavar="NAME=TIME,...", help="Bounds for goodput: ttft=200ms,tpot=50ms."
    )
    find_rate: bool = common.option(
        False, "--find-rate", help="Look for the largest rate that keeps to --slo."
    )
    attained: str = common.option(
        "", metavar="SHARE", help="Of the requests, that must keep to it."
    )
    seed: str = common.option("", metavar="N", help="Seed of arrivals and lengths.")
    warm_up: str = common.option(
        "", metavar="N", help="Requests before, that nobody counts [default: 1]."
    )
    csv: str | None = common.option(None, metavar="FILE", help="Write a row of each request.")


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
