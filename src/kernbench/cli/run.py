"""``kernbench run``: one bench on one machine, and everything that is written about it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.checks import Check
from kernbench.cli.bench_file import Bench, load_bench
from kernbench.cli.failures import (
    describe_failure,
    is_broken_pipe,
    is_interrupt,
    print_traceback,
)
from kernbench.cli.interrupt import interruptible
from kernbench.cli.parameters import parameters_of, parse_parameters
from kernbench.cli.progress import is_terminal, progress
from kernbench.errors import MachineError, UnknownNameError, UsageError
from kernbench.hardware import Machine, load_machine
from kernbench.report import (
    Report,
    format_ns,
    idle_parts,
    peaks_of,
    print_report,
    write_trace,
)

if TYPE_CHECKING:
    from kernbench.runtime_api import RuntimeContext

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
STDOUT = "-"
COLUMNS_OF_FILES = 160
"""Of the report where nothing else is known: more than names of operations need."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written about a run, and how much about a failure."""

    log: str | None = None
    trace: str | None = None
    json: str | None = None
    check: Check = None
    allow: tuple[str, ...] | None = None
    """As ``RuntimeContext`` takes it."""
    debug: bool = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(Outputs):
    """What ``kernbench run`` was given; see ``kernbench run --help``."""

    bench: str
    machine: str | None
    ranks: int | None
    params: tuple[str, ...]
    data: bool
    seed: int
    tf32: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """A run that can start: everything the user typed was understood."""

    bench: Bench
    machine: Machine
    ranks: int
    params: Mapping[str, Any]


def run_bench(options: RunOptions) -> int:
    """Run a bench, print and write its report, and return the exit status."""

    def start() -> int:
        plan = _plan(options)
        return guarded(lambda: _run(plan, options), options.debug)

    return guarded(start, options.debug, usage=True)


def show_bench(given: str, debug: bool) -> int:
    """Print a bench's documentation and parameters, and return the exit status."""

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
    """Return the exit status of ``action``; say on stderr what went wrong.

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


def _plan(options: RunOptions) -> _Plan:
    bench = load_bench(options.bench)
    params = parse_parameters(options.params, parameters_of(bench.run), bench.name)
    ranks = bench.ranks if options.ranks is None else options.ranks
    machine = load_machine(options.machine or bench.machine, ranks)
    make_room(options)
    return _Plan(bench, machine, ranks, params)


def make_room(options: Outputs) -> None:
    """Make the folders of the files that a run will write.

    Raises:
        UsageError: There is no place for one of them.
    """
    taken: dict[Path, str] = {}
    for name in ("log", "trace", "json"):
        given = getattr(options, name)
        if given is not None and given != STDOUT:
            check_writable(name, Path(given))
            other = taken.setdefault(Path(given).resolve(), name)
            if other != name:
                raise UsageError(f"--{other} and --{name} both name {given}; take two files")
        elif given == STDOUT and name != "json":
            raise UsageError(f"--{name} takes a file; only --json can go to stdout")


def check_writable(option: str, path: Path) -> None:
    """Find out before the run, not after it, that there is no place for its results."""
    if path.is_dir():
        raise UsageError(f"--{option} {path} is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--{option} {path}: cannot make the folder: {error.strerror}") from None
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"--{option} {path}: cannot be written: {error.strerror}") from None
    if is_new:
        path.unlink()


def _run(plan: _Plan, options: RunOptions) -> int:
    from kernbench.runtime_api import RuntimeContext

    context = RuntimeContext(
        machine=plan.machine,
        ranks=plan.ranks,
        data=options.data,
        seed=options.seed,
        check=options.check,
        allow=options.allow,
        tf32=options.tf32,
    )

    def work() -> int:
        plan.bench.run(context, **plan.params)
        return DONE

    return run_and_report(context, options, work)


def run_and_report(context: RuntimeContext, options: Outputs, work: Callable[[], int]) -> int:
    """Do ``work`` inside a run, then print and write what is to be reported about the run.

    Returns the exit status that ``work`` gives.
    """
    from rich.console import Console

    json_only = options.json == STDOUT
    log, machine = context.op_log, context.machine

    def describe() -> str:
        return f"{format_ns(context.simulation.now_ps / 1000)} simulated, {len(log)} launches"

    with contextlib.redirect_stdout(sys.stderr if json_only else sys.stdout):
        with progress(describe), context:
            status = work()
        report: Report = context.report()
        # Files and pipes have room for the longest name.
        is_given = is_terminal(sys.stdout) or "COLUMNS" in os.environ
        console = Console(
            file=sys.stdout, highlight=False, width=None if is_given else COLUMNS_OF_FILES
        )
        print_report(report, peaks_of(machine), console, idle_parts(log))
        remarks = [line for ask in context.remarks for line in ask()]
        if remarks:
            print("", *remarks, sep="\n")
    with _writing("log", options.log) as path:
        if path is not None:
            num_rows = log.write_parquet(path, machine=machine.name, ranks=context.world_size)
            print(f"op log: {path} ({num_rows} rows)", file=sys.stderr)
    with _writing("trace", options.trace) as path:
        if path is not None:
            write_trace(log, machine, path)
            print(f"timeline: {path} (open it in https://ui.perfetto.dev)", file=sys.stderr)
    text = json.dumps({**report, "remarks": remarks} if remarks else report, indent=2)
    if json_only:
        print(text)
    else:
        with _writing("json", options.json) as path:
            if path is not None:
                Path(path).write_text(text + "\n", encoding="utf-8")
    return status


@contextlib.contextmanager
def _writing(option: str, path: str | None) -> Iterator[str | None]:
    """Name the option in the error of a disk that filled up meanwhile, say."""
    try:
        yield path
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--{option} {path}: cannot be written: {reason}") from None
