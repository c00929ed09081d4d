"""A program is run and kept, and a kept run is asked why, or done again on another machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kernbench.api.results import Printed, StrPath
from kernbench.cli.programs.kinds import Kind, kind_of
from kernbench.cli.programs.reporting import WRONG_USAGE
from kernbench.errors import KernbenchError, UsageError
from kernbench.notebooks import notebook_progress
from kernbench.saved import SavedRun
from kernbench.saved import load_run as load_saved

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.analysis import Why
    from kernbench.hardware import Machine
    from kernbench.op_log import OpLog
    from kernbench.report import Report


class _RunFolder:
    """A folder that goes with this object, or at the end of the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="kernbench-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class RunError(KernbenchError, RuntimeError):
    """A program that was run has failed; the text is what it said last."""


@dataclass(frozen=True, repr=False)
class RunResult(Printed):
    """A run that is kept; its table is that of kernels."""

    saved: SavedRun
    output: str = field(default="", compare=False)
    """What the program printed, and the report of the command."""
    _folder: _RunFolder | None = field(default=None, compare=False)
    """Holds the run's file as long as there is the result; None where a name was given."""

    @property
    def report(self) -> Report:
        """What ``kernbench run --json`` writes."""
        return cast("Report", self.saved.report)

    @property
    def path(self) -> Path:
        """The run's file, which every command of kernbench reads."""
        return Path(self.saved.path)

    @property
    def machine(self) -> Machine:
        return self.saved.machine

    @property
    def log(self) -> OpLog:
        """All commands of the run, and when each ran."""
        return self.saved.log

    @property
    def ranks(self) -> int:
        return self.report["ranks"]

    @property
    def time_ns(self) -> float:
        """Simulated time of the whole run."""
        return self.report["time_ns"]

    @property
    def step_ns(self) -> float | None:
        """Simulated time of a steady step; None for a program without steps."""
        steps = self.report.get("steps")
        return None if steps is None else steps["steps"][steps["steady"]]["time_ns"]

    def rows(self) -> Sequence[Mapping[str, object]]:
        return self.report["kernels"]

    def print_to(self, console: Console) -> None:
        from kernbench.report import idle_parts, peaks_of, print_report

        print_report(self.report, peaks_of(self.machine), console, idle_parts(self.log))

    def __repr__(self) -> str:
        from kernbench.report import format_ns

        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        name = Path(self.saved.program).name
        return f"RunResult({name}, {ranks} of {self.machine.name}, {format_ns(self.time_ns)})"


@dataclass(frozen=True, repr=False)
class WhyResult(Printed):
    """Where the time of a run, or of a part of it, went; its table is where each rank's went."""

    report: Why
    """What ``kernbench why --json`` writes."""

    @property
    def time_ns(self) -> float:
        return self.report["time_ns"]

    def rows(self) -> Sequence[Mapping[str, object]]:
        return self.report["spent"]

    def print_to(self, console: Console) -> None:
        from kernbench.analysis import print_why

        print_why(self.report, console)

    def __repr__(self) -> str:
        from kernbench.report import format_ns

        part = self.report.get("part")
        what = "the whole run" if part is None else part["name"]
        return f"WhyResult({what}, {format_ns(self.time_ns)})"


def run(
    program: StrPath,
    args: Sequence[str] = (),
    *,
    machine: StrPath | None = None,
    ranks: int | None = None,
    nodes: int = 1,
    params: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    data: bool = True,
    fold: bool = False,
    save: StrPath | None = None,
    timeout_s: float | None = None,
) -> RunResult:
    """Run a program as ``kernbench run`` does, in a process of its own, and keep the run.

    Args:
        program: A bench or the name of one, a script, or a PyTorch program.
        args: Arguments of a script or PyTorch program.
        machine: A preset, ``NAME:SIPS``, or a YAML file; None is what the command takes.
        ranks: Of a bench or a PyTorch program, on all nodes; None: as many as the command takes.
        nodes: Over which the ranks of a PyTorch program are divided.
        params: Parameters of a bench, by name.
        settings: Keys of the machine that are changed, by dotted path; ``"2x"`` is a factor.
        env: Variables of the environment beside this process's.
        data: Whether tensors hold numbers; without, only shapes and time exist.
        fold: Whether one rank of a PyTorch program or bench runs for all that do the same.
        save: Where the run is kept; None: as long as the result is.
        timeout_s: Of wall time; None: any.

    Raises:
        UsageError: A value is none of these, or the program's kind does not take it.
        RunError: The program has failed, or took too long.
    """
    options = _options(os.fspath(program), ranks, nodes, params or {})
    if machine is not None:
        options += ["--machine", os.fspath(machine)]
    for name, value in (settings or {}).items():
        options += ["--set", f"{name}={value}"]
    options += [] if data else ["--no-data"]
    options += ["--fold"] if fold else []
    folder, path = _place(save)
    command = ["run", "--save", path, *options, os.fspath(program), *args]
    output = _call(command, {**os.environ, **(env or {})}, timeout_s)
    return RunResult(load_saved(path), output, folder)


def load_run(path: StrPath) -> RunResult:
    """Return a run that ``--save`` has kept.

    Raises:
        UsageError: There is no such file, or it is no saved run of this version.
    """
    return RunResult(load_saved(path))


def why(
    run: RunResult | StrPath, *, range: str | None = None, steps: str | None = None
) -> WhyResult:
    """Return where the time of a kept run went, and its critical path, as ``kernbench why`` does.

    Args:
        run: A result, or the file of a run.
        range: A named range, ``FILE:LINE``, ``all`` or ``start-up``; None: a steady step, or all of
            a run without steps.
        steps: Which of the steps, as Python slices a list: ``"3"``, ``"2:"``.

    Raises:
        UsageError: It is no saved run, or it has no such steps.
        UnknownNameError: It has no such range.
    """
    from kernbench.analysis import explain, part_of

    result = _result(run)
    part = part_of(result.log, range, steps)
    accuracy = result.report.get("accuracy")
    return WhyResult(explain(result.log, result.machine, result.ranks, accuracy, part))


def retime(
    run: RunResult | StrPath,
    *,
    machine: StrPath | None = None,
    settings: Mapping[str, object] | None = None,
    save: StrPath | None = None,
    timeout_s: float | None = None,
) -> RunResult:
    """Do a kept run again without its program, as ``kernbench retime`` does.

    Args:
        run: A result, or the file of a run.
        machine: On which; None: on its own.
        settings: Keys of the machine that are changed, by dotted path; ``"2x"`` is a factor.
        save: Where the new run is kept; None: as long as the result is.
        timeout_s: Of wall time; None: any.

    Raises:
        UsageError: It is no saved run, or there is no such machine or key.
        RunError: It cannot be done again; the text says why.
    """
    folder, path = _place(save)
    command = ["retime", "--save", path, str(_result(run).path)]
    if machine is not None:
        command += ["--machine", os.fspath(machine)]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    output = _call(command, None, timeout_s)
    return RunResult(load_saved(path), output, folder)


def _result(run: RunResult | StrPath) -> RunResult:
    return run if isinstance(run, RunResult) else RunResult(load_saved(run))


def _place(save: StrPath | None) -> tuple[_RunFolder | None, str]:
    if save is not None:
        return None, os.fspath(save)
    folder = _RunFolder()
    return folder, str(folder.path / "kept.run")


def _options(
    program: str, ranks: int | None, nodes: int, params: Mapping[str, object]
) -> list[str]:
    """Return the options of the command that differ from kind to kind of a program."""
    kind = kind_of(program)
    if params and kind is not Kind.BENCH:
        raise UsageError(f"{program} is {kind}, which takes no params; give it args=[...]")
    options = [text for name, value in params.items() for text in ("-p", f"{name}={value}")]
    if kind is not Kind.PYTORCH:
        if nodes != 1:
            raise UsageError(f"{program} is {kind}: nodes are for PyTorch programs")
        return [*options, *([] if ranks is None else ["--ranks", str(ranks)])]
    if (ranks or nodes) % nodes:
        raise UsageError(f"{ranks} ranks do not fill {nodes} nodes")
    options += [] if nodes == 1 else ["--nnodes", str(nodes)]
    return options + ([] if ranks is None else ["--nproc-per-node", str(ranks // nodes)])


def _call(command: Sequence[str], env: Mapping[str, str] | None, timeout_s: float | None) -> str:
    """Run a command, and return what it and its program print.

    Raises:
        UsageError: It was given what it does not take.
        RunError: It has failed, or took too long.
    """
    try:
        with notebook_progress(lambda: f"kernbench {command[0]}"):
            ended = subprocess.run(
                [sys.executable, "-m", "kernbench", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=env,
                timeout=timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"kernbench {command[0]} took longer than {timeout_s:g} s and was ended"
        ) from None
    said = ended.stdout
    if ended.returncode:
        last = said[max(said.rfind("\nerror"), 0) :].strip().removeprefix("error: ")
        failure = UsageError if ended.returncode == WRONG_USAGE else RunError
        raise failure(last or f"kernbench {command[0]} ended with status {ended.returncode}")
    return said
