"""How commands run programs: guarded, with room for their files, and with a report at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from typer import Context, Typer

from kernbench.cli.console.progress import is_terminal, progress
from kernbench.cli.console.streams import ends_without_reader, interruptible, streams_of_command
from kernbench.cli.options import ProgramOptions, ReportOptions
from kernbench.cli.programs.kinds import Kind, kind_of
from kernbench.cli.registry import options_command
from kernbench.errors import MachineError, OutputError, UnknownNameError, UsageError
from kernbench.logs import logger
from kernbench.notebooks import notebook
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.hardware import Machine
    from kernbench.op_log import OpLog
    from kernbench.report import Report
    from kernbench.runtime_api import RuntimeContext

_LOG = logger("run")
DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
STDOUT = "-"
SHOWN_KERNELS = 4
"""How many kernels' lines are shown: those with the longest times."""
_LEAST_HELD = 0.001
"""The least share of a run's energy that is worth a remark."""
SURE_SPILLS = 32
"""Registers of a thread that a report names: fewer are within what is not known of a compiler."""
COLUMNS_OF_FILES = 160
"""Columns of a report in a file, where names of operations need not be cut."""


def context_of(
    options: ProgramOptions, machine: Machine, changes: list[str], **settings: Any
) -> Callable[..., RuntimeContext]:
    """Return what makes a run of a program; with ``is_watched``, one with lines and memory.

    ``settings`` are what ``RuntimeContext`` is told besides.
    """

    def make_context(*, is_watched: bool = False) -> RuntimeContext:
        from kernbench.runtime_api import RuntimeContext

        context = RuntimeContext(
            machine=machine,
            data=options.data,
            record_memory=options.records_memory or is_watched,
            record_lines=options.records_lines or is_watched,
            **options.checks,
            **settings,
        )
        context.run.remarks.append(lambda: changes)
        return context

    return make_context


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


def guarded_command(
    app: Typer, name: str, **settings: Any
) -> Callable[[Callable[[Any], int]], Callable[[Any], int]]:
    """Make a function of options a command, as ``options_command`` does, whose errors are said."""

    def register(action: Callable[[Any], int]) -> Callable[[Any], int]:
        @wraps(action)
        def run(context: Context, options: Any) -> int:
            return guarded(lambda: action(options), options.debug, usage=True)

        options_command(app, name, **settings)(run)
        return action

    return register


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


def make_room(options: ReportOptions, machine: str | None, inputs: Iterable[str | Path]) -> Outputs:
    """Reserve the files that a run will write; none may be the ``machine``'s or of ``inputs``.

    Raises:
        OutputError: There is no place for one of them, or another command is writing it.
    """
    from kernbench.hardware import file_of

    asked = {f"--{name}": getattr(options, name) for name in ("save", "log", "trace", "json")}
    for option, file in asked.items():
        if file == STDOUT and option != "--json":
            raise UsageError(f"{option} takes a file; only --json can go to stdout")
    if asked["--json"] == STDOUT:
        del asked["--json"]
    return Outputs(asked, [*inputs, *([] if machine is None else [file_of(machine)])])


def report_console() -> Console:
    """Return the console that tables go to: files and pipes have room for the longest name."""
    from rich.console import Console

    is_given = is_terminal(sys.stdout) or "COLUMNS" in os.environ
    width = None if is_given else COLUMNS_OF_FILES
    return Console(file=sys.stdout, highlight=False, emoji=False, width=width)


def show_or_write(
    value: Any,
    json: str | None,
    show: Callable[[Console], None],
    markdown: str | None = None,
    as_markdown: Callable[[], str] = str,
) -> int:
    """Write an analysis as JSON and Markdown, and print its tables unless one went to stdout.

    Returns the exit status, which is that all went well.

    Raises:
        OutputError: A file cannot be written.
    """
    from json import dumps

    from kernbench.outputs import write_text

    texts = {json: lambda: f"{dumps(value, indent=1)}\n", markdown: as_markdown}
    for where, text in texts.items():
        if where == STDOUT:
            print(text(), end="")
        elif where is not None:
            write_text(where, text())
    if STDOUT not in texts:
        show(report_console())
    return DONE


def dump_timeline(log: OpLog, machine: Machine, file: BinaryIO, path: str) -> None:
    """Write the timeline of a run, with its critical path, to an open file of a given name."""
    from kernbench.analysis import critical_path
    from kernbench.report import dump_trace, trace_form

    dump_trace(log, machine, file, critical_path=critical_path(log), form=trace_form(path))


def _print_lines(log: OpLog, ranks: int) -> None:
    from kernbench.analysis import (
        kernel_lines,
        kernels_by_time,
        print_lines,
        print_program_lines,
        program_lines,
    )
    from kernbench.inputs import source_texts

    if log.program_lines is not None:
        caused = program_lines(log, ranks)
        files = [caused_by_line["file"] for caused_by_line in caused["lines"]]
        print_program_lines(caused, source_texts(files), report_console())
    for name in kernels_by_time(log)[:SHOWN_KERNELS]:
        lines = kernel_lines(log, name)
        files = [line_report["file"] for line_report in lines["lines"] if line_report["file"]]
        # Kernels of libraries have no lines.
        if files:
            print_lines(lines, source_texts(files), report_console())


def _of_memory(log: OpLog) -> list[str]:
    """Return what is to be said about the memory of a run that records it."""
    if log.allocations is None:
        return []
    from kernbench.analysis import peak_line

    return peak_line(log)


def _of_power(report: Report, machine: Machine) -> list[str]:
    """Return a line about energy that the limit of a device takes of what runs side by side."""
    energy, power = report.get("energy"), machine.sip.power
    if energy is None or power is None or energy["held_j"] <= _LEAST_HELD * energy["energy_j"]:
        return []
    return [
        f"side by side, kernels and collectives would draw more than the {power.limit_w:g} W of a "
        "device: its clock falls there, and kernels take longer"
    ]


def _of_spills(log: OpLog) -> list[str]:
    """Return a line about kernels whose threads have fewer registers than they would like."""
    numbers: dict[tuple[str, int], int] = {}
    for template in {
        id(instance.template): instance.template for instance in log.instances
    }.values():
        spilled = template.launched_with.get("spilled_registers", 0)
        if spilled >= SURE_SPILLS:
            key = template.name, template.launched_with["num_warps"]
            numbers[key] = max(numbers.get(key, 0), spilled)
    if not numbers:
        return []
    rows = sorted(numbers.items(), key=lambda row: (-row[1], row[0]))
    named = ", ".join(
        f"{name} ({count} of each thread, num_warps={warps})"
        for (name, warps), count in rows[:SHOWN_KERNELS]
    )
    more = f" and {len(rows) - SHOWN_KERNELS} more" if len(rows) > SHOWN_KERNELS else ""
    return [
        f"registers that threads do not have are spilled to memory, as an estimate, by: "
        f"{named}{more}; more warps or a smaller tile need fewer"
    ]


def _print_memory(log: OpLog) -> None:
    from kernbench.analysis import memory_use, print_memory

    if log.allocations is not None and log.allocations.entries:
        print_memory(memory_use(log), report_console())
    else:
        print("\nnothing was allocated on a device")


def imported() -> list[str]:
    """Return the files of the modules that are imported."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [file for file in files if isinstance(file, str)]


def unused_tf32(context: RuntimeContext, tf32: str, path: Path) -> list[str]:
    """Return a line about ``--tf32`` where it changed nothing, and what does."""
    if tf32 == "round" or context.launcher.engine.asks_for_less:
        return []
    line = (
        f"--tf32 {tf32} changed nothing: no kernel asked for float32 products in tf32 or the like"
    )
    if kind_of(str(path)) is Kind.PYTORCH:
        line += (
            "; PyTorch's own run on the CPU here, in float32: kernbench torchrun runs them on "
            "devices, in the precision of torch.backends.cuda.matmul.allow_tf32"
        )
    return [line]


def run_and_report(
    context: RuntimeContext, options: ReportOptions, outputs: Outputs, work: Callable[[], int]
) -> int:
    """Do ``work`` inside a run, then write and print its report.

    Returns the exit status that ``work`` gives. Without files to write there is nothing to go on
    for when nobody reads what the program prints, and nothing to report of a program that has ended
    itself with an error before it used a device.
    """
    import json

    from kernbench.cli.console.progress import Turns
    from kernbench.op_log import uncollected

    json_only = options.json == STDOUT
    if "--save" in outputs:
        context.keep_actions()

    with contextlib.redirect_stdout(sys.stderr if json_only else sys.stdout):
        goes_on = json_only or len(outputs)
        # A rank that is alone keeps nobody waiting.
        is_alone = context.world_size == 1
        note = None if is_alone else Turns(context.run.simulation).note
        with (
            streams_of_command(),
            contextlib.nullcontext() if goes_on else ends_without_reader(),
            progress(context.run.describe, note=note)
            if notebook() is None
            else contextlib.nullcontext(),
            context,
        ):
            _LOG.info("%s begins", options.program)
            status = work()
            _LOG.info(
                "%s has ended with status %d after %s",
                options.program,
                status,
                context.run.describe(),
            )
        if status != DONE and not len(outputs) and not json_only and not len(context.op_log):
            return status  # It has refused its arguments, say.
        # What is made from here on is the log's, and stays until it has been written.
        with uncollected():
            values, said, failure = _report(context, options, outputs)
    if json_only:
        print(json.dumps(values, indent=2))
    for line in said:
        print(line, file=sys.stderr)
    if failure is not None:
        raise failure
    return status


def _report(
    context: RuntimeContext, options: ReportOptions, outputs: Outputs
) -> tuple[dict[str, Any], list[str], OutputError | None]:
    """Write and print the report of a run.

    Returns the report, what is to be said of its files, and why one could not be written.
    """
    from kernbench.report import idle_parts, peaks_of, print_report

    log = context.op_log
    report: Report = context.report()
    _LOG.info("the report is made, of %s", context.run.describe())
    remarks = [line for ask in context.run.remarks for line in ask()]
    remarks += _of_memory(log) + _of_spills(log) + _of_power(report, context.machine)
    result: dict[str, Any] = {**report, "remarks": remarks} if remarks else {**report}
    result.update({name: ask() for name, ask in context.run.parts.items()})
    peaks = [context.run.devices.peaks(), *(ask() for ask in context.run.peaks)]
    result["device_memory_bytes"] = max(max(peak.values(), default=0) for peak in peaks)
    said: list[str] = []
    failure = None
    try:
        said = _write(context, outputs, result, options.program)
    except OutputError as error:
        failure = error  # the report is all the more welcome
    print_report(report, peaks_of(context.machine), report_console(), idle_parts(log))
    if options.lines:
        _print_lines(log, context.world_size)
    if options.memory:
        _print_memory(log)
    if options.energy and "energy" in report:
        from kernbench.analysis import print_energy

        print_energy(report["energy"], report["machine"], report_console(), report.get("cost_usd"))
    if remarks:
        print("", *remarks, sep="\n")
    return result, said, failure


def _write(
    context: RuntimeContext, outputs: Outputs, report: dict[str, Any], program: str
) -> list[str]:
    """Write the files of a run, and return a line about each."""
    import json

    said = []
    log, machine = context.op_log, context.machine
    outputs.refuse(imported())
    if "--save" in outputs:
        from kernbench.saved import save_run

        with outputs.writing("--save") as file:
            save_run(file, log, machine, report, program=program, actions=context.run.actions())
        path = outputs.path_of("--save")
        said.append(f"run: {path} (kernbench why {path} says where its time went)")
    if "--log" in outputs:
        with outputs.writing("--log") as file:
            rows = log.dump_parquet(file, machine=machine.name, ranks=context.world_size)
        said.append(f"op log: {outputs.path_of('--log')} ({rows} rows)")
    if "--trace" in outputs:
        path = outputs.path_of("--trace")
        with outputs.writing("--trace") as file:
            dump_timeline(log, machine, file, path)
        said.append(f"timeline: {path} (open it in https://ui.perfetto.dev)")
    if "--json" in outputs:
        with outputs.writing("--json") as file:
            file.write(f"{json.dumps(report, indent=2)}\n".encode())
    outputs.publish()
    return said
