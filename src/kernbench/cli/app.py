"""The commands and their options; what they do is in the other modules, loaded when needed."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated, Literal

import typer

from kernbench.checks import as_allowed
from kernbench.cli.commands import Commands, option_names
from kernbench.cli.console.leaving import leave
from kernbench.cli.console.streams import readers_may_leave
from kernbench.cli.measured import add_commands
from kernbench.cli.programs.bench_file import known_benches
from kernbench.errors import UsageError

app = typer.Typer(
    name="kernbench",
    cls=Commands,
    help="Run Triton kernels and tensor-parallel programs on accelerators that you do not have.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
machines = typer.Typer(help="Show the machines that ship with kernbench.", no_args_is_help=True)
app.add_typer(machines, name="machine")
kernels = typer.Typer(help="Look into a kernel without running it on data.", no_args_is_help=True)
app.add_typer(kernels, name="kernel")
collectives = typer.Typer(help="Look into a collective before it runs.", no_args_is_help=True)
app.add_typer(collectives, name="collective")


Tf32Option = Annotated[
    Literal["round", "truncate", "ieee"],
    typer.Option(help="float32 products whose kernel asks for tf32 or the like; ieee: in float32."),
]
CheckOption = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Look for races, unwritten memory and the like [default: KERNBENCH_CHECK].",
    ),
]


def _allowed(given: list[str] | None) -> list[str] | None:
    """Refuse what cannot be allowed, as any wrong value of an option."""
    try:
        return sorted(as_allowed(",".join(given), "allow")) if given else None
    except UsageError as error:
        raise typer.BadParameter(str(error).removeprefix("allow: ")) from None


AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MISTAKE,...",
        callback=_allowed,
        help="Let pass: masked-lanes (without other= they are zeros), out-of-bounds-reads (zeros, "
        "and a warning) [default: KERNBENCH_ALLOW].",
    ),
]


def main() -> None:
    """Run the command line and exit: 0 done, 1 the bench failed, 2 wrong usage, 130 Ctrl-C."""
    with readers_may_leave():
        try:
            app()
        except SystemExit as end:
            if "torch" in sys.modules and isinstance(end.code, int):
                leave(end.code)
            raise
        except OSError as error:  # of a disk that is full, say
            print(f"error: {error.strerror or error}", file=sys.stderr)
            sys.exit(1)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernbench {metadata.version('kernbench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Run Triton kernels and tensor-parallel programs on accelerators that you do not have."""


@app.command(
    "run",
    context_settings={"help_option_names": []},
    epilog=f"Benches that ship with kernbench: {', '.join(known_benches())}.",
)
def _run(
    context: typer.Context,
    bench: Annotated[
        str | None,
        typer.Argument(metavar="BENCH", help="A Python file with run(torch, ...), or a name."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Machine: a preset, NAME:SIPS, or a YAML file; the bench's MACHINE, else ahbm.",
        ),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="World size; the bench's RANKS, else 1.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the bench."),
    ] = None,
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Compute numbers, or time and shapes only.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of torch.rand and torch.randn.")] = 0,
    tf32: Tf32Option = "round",
    log: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the op log as Parquet.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a timeline for ui.perfetto.dev.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write the report as JSON; - is stdout.")
    ] = None,
    check: CheckOption = None,
    check_nan: Annotated[
        bool, typer.Option("--check-nan", help="As --check, and the first NaN or Inf is an error.")
    ] = False,
    allow: AllowOption = None,
    debug: Annotated[
        bool, typer.Option(envvar="KERNBENCH_DEBUG", help="Show full tracebacks.")
    ] = False,
    show_help: Annotated[
        bool, typer.Option("--help", help="Show this, or the parameters of BENCH.")
    ] = False,
) -> None:
    """Run a bench on a machine and show where the time went."""
    from kernbench.cli.run import RunOptions, run_bench, show_bench

    if bench is None:
        if show_help:
            typer.echo(context.get_help())
            raise typer.Exit(0)
        typer.echo(f"error: name a bench: a file, or one of {', '.join(known_benches())}", err=True)
        raise typer.Exit(2)
    if show_help:
        raise typer.Exit(show_bench(bench, debug))
    options = RunOptions(
        bench=bench,
        machine=machine,
        ranks=ranks,
        params=tuple(param or ()),
        data=data,
        seed=seed,
        tf32=tf32,
        check="nan" if check_nan else check,
        allow=tuple(allow) if allow else None,
        log=log,
        trace=trace,
        json=json,
        debug=debug,
    )
    raise typer.Exit(run_bench(options))


@app.command("script", context_settings={"allow_interspersed_args": False})
def _script(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="FILE", help="A Python program that launches Triton kernels.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="What the program is given.")
    ] = None,
    machine: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Machine: a preset, NAME:SIPS, or a YAML file.")
    ] = "ahbm",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What Triton's get_current_target() tells the program: cuda, hip; else kernbench.",
        ),
    ] = None,
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Compute numbers, or time only.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of kernbench's own random numbers.")] = 0,
    tf32: Tf32Option = "round",
    log: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the op log as Parquet.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a timeline for ui.perfetto.dev.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write the report as JSON; - is stdout.")
    ] = None,
    check: CheckOption = None,
    check_nan: Annotated[
        bool, typer.Option("--check-nan", help="As --check, and the first NaN or Inf is an error.")
    ] = False,
    allow: AllowOption = None,
    debug: Annotated[
        bool, typer.Option(envvar="KERNBENCH_DEBUG", help="Show full tracebacks.")
    ] = False,
) -> None:
    """Run a program written for a GPU, unmodified, on a machine; then show its launches.

    Options of kernbench come before FILE, arguments of the program after it. Its PyTorch tensors
    stay on the CPU and stand for the device's; triton.testing.do_bench gives modeled time.
    """
    from kernbench.cli.script import ScriptOptions, run_script

    options = ScriptOptions(
        script=script,
        args=tuple(args or ()),
        machine=machine,
        target=target,
        data=data,
        seed=seed,
        tf32=tf32,
        check="nan" if check_nan else check,
        allow=tuple(allow) if allow else None,
        log=log,
        trace=trace,
        json=json,
        debug=debug,
        own_options=option_names(context),
    )
    raise typer.Exit(run_script(options))


@app.command("torchrun", context_settings={"allow_interspersed_args": False})
def _torchrun(
    context: typer.Context,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A PyTorch program.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="What the program is given.")
    ] = None,
    nproc_per_node: Annotated[
        str,
        typer.Option(
            "--nproc-per-node",
            "--nproc_per_node",
            metavar="N|gpu",
            help="Ranks, gpu for one per device; with 1 the program may spawn ranks itself.",
        ),
    ] = "1",
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as of python -m.")
    ] = False,
    nnodes: Annotated[
        str, typer.Option("--nnodes", metavar="1", help="As torchrun's; there is one node.")
    ] = "1",
    master_addr: Annotated[
        str, typer.Option("--master-addr", "--master_addr", help="Of MASTER_ADDR.")
    ] = "localhost",
    master_port: Annotated[
        int, typer.Option("--master-port", "--master_port", help="Of MASTER_PORT.")
    ] = 29500,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="As torchrun's; it is always so.")
    ] = False,
    node_rank: Annotated[str, typer.Option("--node-rank", "--node_rank", hidden=True)] = "0",
    max_restarts: Annotated[int, typer.Option("--max-restarts", "--max_restarts", hidden=True)] = 0,
    rdzv_backend: Annotated[
        str, typer.Option("--rdzv-backend", "--rdzv_backend", hidden=True)
    ] = "",
    rdzv_endpoint: Annotated[
        str, typer.Option("--rdzv-endpoint", "--rdzv_endpoint", hidden=True)
    ] = "",
    rdzv_id: Annotated[str, typer.Option("--rdzv-id", "--rdzv_id", hidden=True)] = "none",
    machine: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Machine: a preset, NAME:SIPS, or a YAML file.")
    ] = "ahbm",
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Compute numbers, or time and shapes only.")
    ] = True,
    log: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the op log as Parquet.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a timeline for ui.perfetto.dev.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write the report as JSON; - is stdout.")
    ] = None,
    check: CheckOption = None,
    check_nan: Annotated[
        bool, typer.Option("--check-nan", help="As --check, and the first NaN or Inf is an error.")
    ] = False,
    allow: AllowOption = None,
    ranks_print: Annotated[
        str, typer.Option(metavar="all|0,1,...", help="The ranks whose output is shown.")
    ] = "all",
    prefix: Annotated[
        bool, typer.Option("--prefix/--no-prefix", help="Show each line's rank before it.")
    ] = False,
    private: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE", help="A package that each rank imports for itself; repeatable."
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option(envvar="KERNBENCH_DEBUG", help="Show full tracebacks.")
    ] = False,
) -> None:
    """Run an unmodified PyTorch program on simulated devices; then show where the time went.

    Options of kernbench come before SCRIPT, arguments of the program after it. Every rank is a
    simulated process with the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, ...);
    "cuda" is the machine, "nccl" its links. Options of torchrun that find other nodes or restart
    workers (--rdzv-backend, --rdzv-endpoint, --max-restarts, ...) are accepted. Needs PyTorch: pip
    install "kernbench[torch]".
    """
    from kernbench.cli.torchrun import TorchrunOptions, torchrun

    options = TorchrunOptions(
        script=script,
        args=tuple(args or ()),
        nproc_per_node=nproc_per_node,
        module=module,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        run_id=rdzv_id,
        machine=machine,
        data=data,
        check="nan" if check_nan else check,
        allow=tuple(allow) if allow else None,
        log=log,
        trace=trace,
        json=json,
        ranks_print=ranks_print,
        prefix=prefix,
        private=tuple(private or ()),
        debug=debug,
        own_options=option_names(context),
    )
    raise typer.Exit(torchrun(options))


@kernels.command("show")
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
    machine: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Machine: a preset, NAME:SIPS, or a YAML file.")
    ] = "ahbm",
    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="World size; the bench's RANKS, else 1.")
    ] = None,
    num_stages: Annotated[
        int, typer.Option(min=1, help="Of a .ttir file: stages of its pipelined loops.")
    ] = 3,
    every: Annotated[
        bool, typer.Option("--all", help="Every distinct launch, not only the first.")
    ] = False,
    debug: Annotated[
        bool, typer.Option(envvar="KERNBENCH_DEBUG", help="Show full tracebacks.")
    ] = False,
) -> None:
    """Show a kernel's TTIR, its commands, its TCM use and its modeled schedule.

    FILE is a bench or any program that launches the kernel; it runs without data, up to the first
    launch of the kernel.
    """
    from kernbench.cli.kernel_show import ShowOptions, show_kernel

    options = ShowOptions(
        what=what,
        arguments=tuple(arg or ()),
        machine=machine,
        ranks=ranks,
        num_stages=num_stages,
        all=every,
        debug=debug,
    )
    raise typer.Exit(show_kernel(options))


@collectives.command("show")
def _show_collective(
    op: Annotated[str, typer.Argument(metavar="OP", help="all_reduce, all_to_all, ...")],
    machine: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Machine: a preset, NAME:SIPS, or a YAML file.")
    ] = "ahbm",
    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="Ranks, on SIPs 0 to N-1; all by default.")
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="BYTES", help="The message, like 4096, 64K or 1MiB.")
    ] = "1MiB",
    algorithm: Annotated[str, typer.Option(metavar="NAME", help="An algorithm.")] = "auto",
    protocol: Annotated[str, typer.Option(metavar="NAME", help="One of the machine's.")] = "auto",
    steps: Annotated[int, typer.Option(min=0, help="How many steps to print.")] = 32,
) -> None:
    """Show a collective's algorithm, its modeled time, its bound, and its schedule step by step.

    The message is as nccl-tests counts it, in elements of 2 bytes; of one rank for all_to_all. The
    bench ccl_selection prints what every other way would take.
    """
    from kernbench.cli.collective import CollectiveOptions, show_collective

    options = CollectiveOptions(
        op=op,
        machine=machine,
        ranks=ranks,
        size=size,
        algorithm=algorithm,
        protocol=protocol,
        steps=steps,
    )
    raise typer.Exit(show_collective(options))


@app.command("validate")
def _validate(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="CSV files of measured rows.")
    ],
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the errors as JSON.")
    ] = None,
    worst: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show the N rows that are furthest off.")
    ] = 0,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes; as many as CPUs.")
    ] = None,
    every: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[CATEGORY=]N",
            help="Score one row in N, picked by a hash; of one category, or of all. Repeatable.",
        ),
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a scatter plot (needs matplotlib).")
    ] = None,
    page: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the table as a Markdown page.")
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Your machine for the devices it lists; repeatable."),
    ] = None,
    borrow: Annotated[
        str | None,
        typer.Option(
            metavar="DONOR:TARGET",
            help="Score TARGET's GEMMs with DONOR's fitted constants, as if it had no rows.",
        ),
    ] = None,
) -> None:
    """Score the model on measured rows: errors per category, device and source."""
    from kernbench.cli.validate import ValidateOptions, validate

    options = ValidateOptions(
        data=tuple(data),
        json=json,
        page=page,
        plot=plot,
        worst=worst,
        jobs=jobs,
        every=tuple(every or ()),
        machines=tuple(machine or ()),
        borrow=borrow,
    )
    raise typer.Exit(validate(options))


add_commands(app)


@machines.command("list")
def _list_machines() -> None:
    """List the machines, the numbers of SIPs that they come in, and what they are."""
    from kernbench.cli.machine import list_machines

    raise typer.Exit(list_machines())


@machines.command("show")
def _show_machine(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="As --machine takes it.")],
) -> None:
    """Show a machine: its peak rates, then every number of its description."""
    from kernbench.cli.machine import show_machine

    raise typer.Exit(show_machine(name))


@machines.command("check")
def _check_machine(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="As --machine takes it.")],
) -> None:
    """Check a machine file at all of its sizes; name numbers that have no source."""
    from kernbench.cli.machine import check_machine

    raise typer.Exit(check_machine(name))


@machines.command("diff")
def _diff_machines(
    first: Annotated[str, typer.Argument(metavar="A", help="As --machine takes it.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The machine to compare with it.")],
) -> None:
    """Show the keys in which two machines differ."""
    from kernbench.cli.machine import diff_machines

    raise typer.Exit(diff_machines(first, second))


@machines.command("schema")
def _print_schema() -> None:
    """Print the JSON schema of machine files, by which editors complete and check them."""
    from kernbench.cli.machine import print_schema

    raise typer.Exit(print_schema())
