"""``kernbench run``: one bench on one machine, and every file and table it leaves."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernbench.cli import options as given
from kernbench.cli.console.interrupt import interruptible
from kernbench.cli.console.progress import is_terminal, progress
from kernbench.cli.console.streams import ends_without_reader
from kernbench.cli.programs.bench_file import Bench, known_benches, load_bench
from kernbench.errors import MachineError, OutputError, UnknownNameError, UsageError
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.report import Report
    from kernbench.runtime_api import RuntimeContext

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
STDOUT = "-"
COLUMNS_OF_FILES = 160
"""Columns of a report in a file, where names of operations need not be cut."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Which files a run writes, and how much of a failure it shows."""

    log: str | None = None
    trace: str | None = None
    json: str | None = None
    check: bool | None = None
    check_nan: bool = False
    allow: list[str] | None = None
    debug: bool = False

    @property
    def checks(self) -> dict[str, Any]:
        """What is checked, as parameters of ``RuntimeContext``."""
        return {
            "check": True if self.check_nan else self.check,
            "nan_is_error": True if self.check_nan else None,
            "allow": self.allow or None,
        }


@dataclass(frozen=True, kw_only=True)
class RunOptions(OutputOptions):
    """What ``kernbench run`` was given; see ``kernbench run --help``."""

    bench: str
    machine: str | None
    ranks: int | None
    params: tuple[str, ...]
    data: bool
    seed: int
    tf32: str


PLACE = 10
app = typer.Typer()


@app.command(
    "run",
    context_settings={"help_option_names": []},
    epilog=f"Benches that ship with kernbench: {', '.join(known_benches())}.",
)
def _run_bench(
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
    ranks: given.Ranks = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the bench."),
    ] = None,
    data: given.Data = True,
    seed: Annotated[int, typer.Option(help="Seed of torch.rand and torch.randn.")] = 0,
    tf32: given.Tf32 = "round",
    log: given.Log = None,
    trace: given.Trace = None,
    json: given.Json = None,
    check: given.Check = None,
    check_nan: given.CheckNan = False,
    allow: given.Allow = None,
    debug: given.Debug = False,
    show_help: Annotated[
        bool, typer.Option("--help", help="Show this, or the parameters of BENCH.")
    ] = False,
) -> None:
    """Run a bench on a machine and show where the time went."""
    if bench is None:
        if show_help:
            typer.echo(context.get_help())
            raise typer.Exit(0)
        typer.echo(f"error: name a bench: a file, or one of {', '.join(known_benches())}", err=True)
        raise typer.Exit(2)
    if show_help:
        raise typer.Exit(show_bench(bench, debug))
    asked = RunOptions(
        bench=bench,
        machine=machine,
        ranks=ranks,
        params=tuple(param or ()),
        data=data,
        seed=seed,
        tf32=tf32,
        check=check,
        check_nan=check_nan,
        allow=allow,
        log=log,
        trace=trace,
        json=json,
        debug=debug,
    )
    raise typer.Exit(run_bench(asked))


@dataclass(frozen=True, slots=True)
class _ReadyRun:
    """A run that can start: everything the user typed is valid."""

    bench: Bench
    machine: Machine
    ranks: int
    params: Mapping[str, Any]


def run_bench(options: RunOptions) -> int:
    """Run a bench, print and write its report, and return the exit status."""

    def start() -> int:
        plan = _plan(options)
        with make_room(options, options.machine, [plan.bench.path, *imported()]) as outputs:
            return guarded(lambda: _run(plan, options, outputs), options.debug)

    return guarded(start, options.debug, usage=True)


def show_bench(given: str, debug: bool) -> int:
    """Print a bench's documentation and parameters, and return the exit status."""
    from kernbench.cli.programs.parameters import parameters_of

    def show() -> int:
        bench = load_bench(given)
        parameters = parameters_of(bench.run)
        lines = [bench.about, "", f"usage: kernbench run {given} [OPTIONS]", ""]
        lines.append("parameters (--param NAME=VALUE):" if parameters else "no parameters")
        lines += [f"  {each}" for each in parameters]
        lines += [
            "",
            f"machine: {bench.machine} (--machine NAME); ranks: {bench.ranks} (--ranks N); "
            "options: kernbench run --help",
        ]
        print("\n".join(lines).lstrip("\n"))
        return DONE

    return guarded(show, debug, usage=True)


def guarded(action: Callable[[], int], debug: bool, *, usage: bool = False) -> int:
    """Return the exit status of ``action``; print what went wrong to stderr.

    With ``usage``, errors of the kinds that a wrong command line raises are just that.
    """
    try:
        with interruptible():
            return action()
    except KeyboardInterrupt as error:
        return _report_interrupt(error)
    except (UsageError, UnknownNameError, MachineError) as error:
        if not usage:
            return _report_failure(error, debug)
        if debug:
            from kernbench.cli.programs.failures import print_traceback

            print_traceback(error)
        print(f"error: {error}", file=sys.stderr)
        return WRONG_USAGE
    except SystemExit:
        raise
    except BaseException as error:
        return _report_failure(error, debug)


def _report_interrupt(error: BaseException) -> int:
    print("\n  ".join(["interrupted", *getattr(error, "__notes__", ())]), file=sys.stderr)
    return INTERRUPTED


def _report_failure(error: BaseException, debug: bool) -> int:
    from kernbench.cli.programs.failures import (
        describe_failure,
        is_broken_pipe,
        is_interrupt,
        print_traceback,
    )

    if is_interrupt(error):
        return _report_interrupt(error)
    if is_broken_pipe(error):
        # The reader has seen enough.
        sys.stdout = None  # so that Python does not flush it again
        return DONE
    if debug:
        print_traceback(error)
    print(describe_failure(error), file=sys.stderr)
    return FAILED


def _plan(options: RunOptions) -> _ReadyRun:
    from kernbench.cli.programs.parameters import parameters_of, parse_parameters
    from kernbench.hardware import load_machine

    bench = load_bench(options.bench)
    params = parse_parameters(options.params, parameters_of(bench.run), bench.name)
    ranks = bench.ranks if options.ranks is None else options.ranks
    machine = load_machine(bench.machine if options.machine is None else options.machine, ranks)
    return _ReadyRun(bench, machine, ranks, params)


def make_room(options: OutputOptions, machine: str | None, inputs: Iterable[str | Path]) -> Outputs:
    """Reserve the files that a run will write; none may be the ``machine``'s or of ``inputs``.

    Raises:
        OutputError: There is no place for one of them, or another command is writing it.
    """
    from kernbench.hardware import file_of

    asked = {f"--{name}": getattr(options, name) for name in ("log", "trace", "json")}
    for option, file in asked.items():
        if file == STDOUT and option != "--json":
            raise UsageError(f"{option} takes a file; only --json can go to stdout")
    if asked["--json"] == STDOUT:
        del asked["--json"]
    return Outputs(asked, [*inputs, *([] if machine is None else [file_of(machine)])])


def imported() -> list[str]:
    """Return the files of the modules that are imported."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [file for file in files if isinstance(file, str)]


def _run(plan: _ReadyRun, options: RunOptions, outputs: Outputs) -> int:
    from kernbench.runtime_api import RuntimeContext

    context = RuntimeContext(
        machine=plan.machine,
        ranks=plan.ranks,
        data=options.data,
        seed=options.seed,
        **options.checks,
        tf32=options.tf32,
    )

    def work() -> int:
        plan.bench.start(context, plan.params)
        return DONE

    return run_and_report(context, options, outputs, work)


def run_and_report(
    context: RuntimeContext, options: OutputOptions, outputs: Outputs, work: Callable[[], int]
) -> int:
    """Do ``work`` inside a run, then write and print its report.

    Returns the exit status that ``work`` gives. Without files to write there is nothing to go on
    for when nobody reads what the program prints.
    """
    import json

    from rich.console import Console

    from kernbench.report import format_ns, idle_parts, peaks_of, print_report

    json_only = options.json == STDOUT
    log, machine = context.op_log, context.machine

    def describe() -> str:
        return f"{format_ns(context.run.simulation.now_ps / 1000)} simulated, {len(log)} launches"

    with contextlib.redirect_stdout(sys.stderr if json_only else sys.stdout):
        goes_on = json_only or len(outputs)
        with (
            contextlib.nullcontext() if goes_on else ends_without_reader(),
            progress(describe),
            context,
        ):
            status = work()
        report: Report = context.report()
        remarks = [line for ask in context.run.remarks for line in ask()]
        text = json.dumps({**report, "remarks": remarks} if remarks else report, indent=2)
        said: list[str] = []
        failure = None
        try:
            said = _write(context, outputs, text)
        except OutputError as error:
            failure = error  # the report is all the more welcome
        # Files and pipes have room for the longest name.
        is_given = is_terminal(sys.stdout) or "COLUMNS" in os.environ
        console = Console(
            file=sys.stdout, highlight=False, width=None if is_given else COLUMNS_OF_FILES
        )
        print_report(report, peaks_of(machine), console, idle_parts(log))
        if remarks:
            print("", *remarks, sep="\n")
    if json_only:
        print(text)
    for line in said:
        print(line, file=sys.stderr)
    if failure is not None:
        raise failure
    return status


def _write(context: RuntimeContext, outputs: Outputs, report: str) -> list[str]:
    """Write the files of a run, and return a line about each."""
    from kernbench.report import dump_trace

    said = []
    log, machine = context.op_log, context.machine
    outputs.refuse(imported())
    if "--log" in outputs:
        with outputs.writing("--log") as file:
            rows = log.dump_parquet(file, machine=machine.name, ranks=context.world_size)
        said.append(f"op log: {outputs.path_of('--log')} ({rows} rows)")
    if "--trace" in outputs:
        with outputs.writing("--trace") as file:
            dump_trace(log, machine, file)
        path = outputs.path_of("--trace")
        said.append(f"timeline: {path} (open it in https://ui.perfetto.dev)")
    if "--json" in outputs:
        with outputs.writing("--json") as file:
            file.write(f"{report}\n".encode())
    outputs.publish()
    return said
