"""Runs a bench or a program to capture how it launches its kernels."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.cli.programs.bench_file import find_bench, load_bench
from kernbench.cli.programs.kinds import offers_run
from kernbench.cli.programs.parameters import parameters_of, parse_parameters
from kernbench.cli.programs.scripts import compile_program, run_program
from kernbench.commands import KernelTrace
from kernbench.errors import NeedsDataError, NoDataError, UnknownNameError, UsageError, nearest
from kernbench.hardware import Machine, load_machine, ranks_of
from kernbench.runtime_api import KernelEngine, LivePlan, RuntimeContext

if TYPE_CHECKING:
    from kernbench.interleaved import Executed, InterleavedLaunch, Resolve
    from kernbench.kernel_time import Conditions
    from kernbench.op_log import Template
    from kernbench.sanitizer import LiveWatch
    from kernbench.triton_backend import KernelBinary

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class CapturedLaunch:
    """How a kernel was launched: one specialisation, grid and set of integers, and when."""

    binary: KernelBinary
    grid: Grid
    ints: Mapping[int, int]
    trace: KernelTrace
    sip_id: int
    conditions: Conditions
    template: Template
    """The schedule that the launch had."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What was captured of one kernel."""

    launches: tuple[CapturedLaunch, ...]
    machine: Machine
    has_data: bool
    """Whether the program ran with data, because what its kernels do depends on it."""
    failure: str
    """Why the program ended early; empty if it did not."""


class _EnoughSeen(BaseException):
    """Ends the program; not an Exception, so that no handler in it catches it as a failure."""


class _TalksError(UsageError):
    """The kernel has no schedule of its own."""


class _CapturingEngine(KernelEngine):
    """Captures each launch of a kernel when it first starts in some state."""

    def __init__(self, machine: Machine, name: str, only_first: bool) -> None:
        super().__init__(machine)
        self.name = name
        self.only_first = only_first
        self.launches: list[CapturedLaunch] = []
        self.seen: list[str] = []
        self.needs_data = False
        """Whether what the kernel does depends on data."""
        self._planned: dict[KernelTrace, tuple[KernelBinary, Grid, Mapping[int, int]]] = {}
        """What will be scheduled when it starts."""

    def evaluate(self, binary: KernelBinary, grid: Grid, ints: Mapping[int, int]) -> KernelTrace:
        self.seen.append(binary.name)
        try:
            trace = super().evaluate(binary, grid, ints)
        except NeedsDataError:
            self.needs_data |= binary.name == self.name
            raise
        self._planned[trace] = binary, grid, dict(ints)
        return trace

    def run_live(
        self,
        plan: LivePlan,
        params: Sequence[Any],
        resolve: Resolve,
        sip_id: int,
        watch: LiveWatch | None = None,
    ) -> Executed:
        executed = super().run_live(plan, params, resolve, sip_id, watch)
        self._planned[executed.trace] = plan.kernel.binary, plan.grid, dict(plan.ints)
        return executed

    def pace(
        self,
        plan: LivePlan,
        params: Sequence[Any],
        resolve: Resolve,
        watch: LiveWatch | None = None,
    ) -> InterleavedLaunch:
        if plan.kernel.name == self.name:
            raise _TalksError(
                f"kernel {self.name} talks to other SIPs: what it does, and when, depends on the "
                "kernels of other ranks; see its rows in `kernbench run ... --log ops.parquet`, "
                "or its timeline with --trace"
            )
        return super().pace(plan, params, resolve, watch)

    def schedule(
        self,
        trace: KernelTrace,
        sip_id: int,
        conditions: Conditions,
        name: str,
        *arguments: Mapping[str, int | str],
    ) -> Template:
        template = super().schedule(trace, sip_id, conditions, name, *arguments)
        if trace in self._planned:
            binary, grid, ints = self._planned.pop(trace)
            if binary.name == self.name:
                self.launches.append(
                    CapturedLaunch(binary, grid, ints, trace, sip_id, conditions, template)
                )
                if self.only_first:
                    raise _EnoughSeen
        return template


def capture(
    file: str,
    kernel: str,
    arguments: Sequence[str],
    machine: str,
    ranks: int | None,
    *,
    only_first: bool,
) -> Captured:
    """Run a file and return the launches of one of its kernels.

    It runs without data, and again with it if the kernel, or one before it, decides by data.
    ``arguments`` are ``NAME=VALUE`` for a bench and the command line of any other program. What
    the file prints is thrown away. If it fails after a launch of the kernel, that is no failure
    here: without data its own checks cannot hold.

    Raises:
        UnknownNameError: The file has no such kernel, and launches none.
        UsageError: The kernel is never launched.
    """
    path = find_bench(file)
    tree = _parse(path)
    program = _load(path, tree, arguments, machine, ranks)
    has_data = False
    engine, error = _run(program, kernel, only_first, has_data)
    lacked_data = any(isinstance(leaf, NoDataError) for leaf in _leaves(error))
    if engine.needs_data or (lacked_data and not engine.launches):
        has_data = True
        engine, error = _run(program, kernel, only_first, has_data)
    for leaf in _leaves(error):
        if isinstance(leaf, _TalksError):
            raise leaf
    failure = ""
    if error is not None and not any(isinstance(item, _EnoughSeen) for item in _leaves(error)):
        if not engine.launches and kernel in _defined(tree) | set(engine.seen):
            raise error
        failure = f"{type(error).__name__}: {error}".partition("\n")[0]
    if not engine.launches:
        raise _not_launched(path, tree, kernel, engine.seen)
    return Captured(tuple(engine.launches), program.machine, has_data, failure)


@dataclass(frozen=True, slots=True)
class _Program:
    """A bench or any other program, ready to run on a machine."""

    machine: Machine
    ranks: int
    run: Callable[[RuntimeContext], object]


def _load(
    path: Path, tree: ast.Module, arguments: Sequence[str], machine: str, ranks: int | None
) -> _Program:
    if offers_run(tree):
        bench = load_bench(str(path))
        params = parse_parameters(tuple(arguments), parameters_of(bench.run), bench.name)
        ranks = bench.ranks if ranks is None else ranks
        loaded = load_machine(machine, ranks)
        ranks = ranks or ranks_of(machine)
        return _Program(loaded, ranks, lambda context: bench.start(context, params))
    ranks = 1 if ranks is None else ranks
    loaded = load_machine(machine, ranks)
    code = compile_program(path, "kernel show")

    def start(context: RuntimeContext) -> None:
        with contextlib.suppress(SystemExit):
            run_program(path, code, [str(path), *arguments], loaded)

    return _Program(loaded, ranks, start)


def _run(
    program: _Program, kernel: str, only_first: bool, has_data: bool
) -> tuple[_CapturingEngine, BaseException | None]:
    """Run a program without output; return what was captured, and what ended it early."""
    engine = _CapturingEngine(program.machine, kernel, only_first)
    context = RuntimeContext(
        machine=program.machine, ranks=program.ranks, data=has_data, kernel_engine=engine
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()), context:
            try:
                program.run(context)
            except Exception:
                # What was launched by then starts all the same.
                with contextlib.suppress(Exception):
                    context.drain()
                raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return engine, error
    return engine, None


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for exception in error.exceptions:
            yield from _leaves(exception)
    elif error is not None:
        yield error


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except ValueError as error:
        raise UsageError(f"{path.name} is not a Python file: {error}") from None


def _defined(tree: ast.Module) -> set[str]:
    """Return the names of the kernels that a file defines."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("jit" in ast.unparse(expr) for expr in node.decorator_list)
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
            "pass other arguments with --arg"
        )
    known = nearest(kernel, defined | set(seen))
    return UnknownNameError(f"no kernel {kernel} in {path.name}: {known}")
