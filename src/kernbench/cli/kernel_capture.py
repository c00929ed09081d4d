"""Running a bench or a program only to learn how it launches its kernels."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.cli.bench_file import find_bench, load_bench
from kernbench.cli.parameters import parameters_of, parse_parameters
from kernbench.cli.script import compile_program, run_program
from kernbench.commands import KernelTrace
from kernbench.errors import NeedsDataError, NoDataError, UnknownNameError, UsageError, nearest
from kernbench.hardware import Machine, load_machine
from kernbench.runtime_api import KernelEngine, RuntimeContext

if TYPE_CHECKING:
    from kernbench.triton_backend import KernelBinary

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class CapturedLaunch:
    """How a kernel was launched: one specialisation, grid and set of integers."""

    binary: KernelBinary
    grid: Grid
    ints: Mapping[int, int]
    trace: KernelTrace | None
    """None where what the kernel does depends on data; ``reason`` then says why."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Captured:
    """What was learned about one kernel."""

    launches: tuple[CapturedLaunch, ...]
    machine: Machine
    failure: str
    """Why the program ended early, or nothing."""


class _EnoughSeen(BaseException):
    """Ends the program: not an Exception, so that nobody in it takes it for a failure."""


class _CapturingEngine(KernelEngine):
    """Writes down what each kernel does when it is launched for the first time."""

    def __init__(self, machine: Machine, name: str, only_first: bool) -> None:
        super().__init__(machine)
        self.name = name
        self.only_first = only_first
        self.launches: list[CapturedLaunch] = []
        self.seen: list[str] = []

    def evaluate(self, binary: KernelBinary, grid: Grid, ints: Mapping[int, int]) -> KernelTrace:
        self.seen.append(binary.name)
        try:
            trace = super().evaluate(binary, grid, ints)
        except NeedsDataError as error:
            self._keep(CapturedLaunch(binary, grid, dict(ints), None, str(error)))
            raise
        self._keep(CapturedLaunch(binary, grid, dict(ints), trace))
        return trace

    def _keep(self, launch: CapturedLaunch) -> None:
        if launch.binary.name != self.name:
            return
        self.launches.append(launch)
        if self.only_first:
            raise _EnoughSeen


def capture(
    file: str,
    kernel: str,
    arguments: Sequence[str],
    machine: str,
    ranks: int | None,
    *,
    only_first: bool,
) -> Captured:
    """Run a file without data and return the launches of one of its kernels.

    ``arguments`` are ``NAME=VALUE`` for a bench and the command line of any other program. What
    the file prints is thrown away. If it fails after a launch of the kernel, that is no failure
    here: without data its own checks cannot hold.

    Raises:
        UnknownNameError: The file has no such kernel, and launches none.
        UsageError: The kernel is never launched.
    """
    path = find_bench(file)
    tree = _parse(path)
    is_bench = any(
        isinstance(node, ast.FunctionDef) and node.name == "run" and node.args.args
        for node in tree.body
    )
    params: Mapping[str, Any] = {}
    bench = None
    if is_bench:
        bench = load_bench(str(path))
        params = parse_parameters(tuple(arguments), parameters_of(bench.run), bench.name)
        ranks = bench.ranks if ranks is None else ranks
    ranks = 1 if ranks is None else ranks
    loaded = load_machine(machine, ranks)
    engine = _CapturingEngine(loaded, kernel, only_first)
    context = RuntimeContext(machine=loaded, ranks=ranks, data=False, kernel_engine=engine)
    failure = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()), context:
            if bench is not None:
                bench.run(context, **params)
            else:
                run_program(path, compile_program(path), tuple(arguments), loaded)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        known = _defined(tree) | set(engine.seen)
        if not engine.launches and kernel in known and not isinstance(error, NoDataError):
            raise
        failure = "" if _is_enough(error) else f"{type(error).__name__}: {error}"
    if not engine.launches:
        raise _not_launched(path, tree, kernel, engine.seen)
    return Captured(tuple(engine.launches), loaded, failure.partition("\n")[0])


def _is_enough(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_enough(each) for each in error.exceptions)
    return isinstance(error, _EnoughSeen)


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except ValueError as error:
        raise UsageError(f"{path.name} is no Python file: {error}") from None


def _defined(tree: ast.Module) -> set[str]:
    """Return the names of the kernels that a file defines."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("jit" in ast.unparse(each) for each in node.decorator_list)
    }


def _not_launched(
    path: Path, tree: ast.Module, kernel: str, seen: Sequence[str]
) -> UnknownNameError | UsageError:
    defined = _defined(tree)
    launched = sorted(set(seen))
    if kernel in defined:
        others = f"it launches {', '.join(launched)}" if launched else "it launches no kernel"
        return UsageError(
            f"{path.name} never launches {kernel} with these arguments: {others}; "
            "give it others with --arg"
        )
    known = nearest(kernel, defined | set(seen))
    return UnknownNameError(f"no kernel {kernel} in {path.name}: {known}")
