"""Running a bench: one machine, one call of its ``run``, one report."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path
from symtable import SymbolTable, symtable
from typing import TYPE_CHECKING, Any

from kernbench.cli import options as common
from kernbench.cli.programs.bench_file import Bench, load_bench
from kernbench.cli.programs.folded import check_folding, run_ranks
from kernbench.cli.programs.importing import import_to_stay
from kernbench.cli.programs.reporting import (
    DONE,
    context_of,
    guarded,
    imported,
    make_room,
    unused_tf32,
)
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.runtime_api import RuntimeContext


_TORCH = "torch"


def uses_of_own_torch(path: Path) -> list[str]:
    """Return a remark on the functions of a bench that use the PyTorch that the file imports.

    That one computes on the CPU: nothing that it does takes modeled time.
    """
    if _TORCH not in sys.modules:
        return []
    text = decode_source(path.read_bytes())
    names = frozenset(_imported(ast.parse(text)))
    users = sorted(set(_users(symtable(text, str(path), "exec"), names))) if names else []
    if not users:
        return []
    return [
        f"{path.name}: {', '.join(users)} use the PyTorch that the file imports, which computes "
        "on the CPU and takes no modeled time; the torch that run() is given is the device's"
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names that PyTorch, its modules and what is in them have in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] == _TORCH:
                    yield name.asname or _TORCH
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == _TORCH:
            yield from (name.asname or name.name for name in node.names)


def _users(scope: SymbolTable, names: frozenset[str]) -> Iterator[str]:
    """Yield the functions that refer to one of ``names``, but to no parameter of that name."""
    if scope.get_type() == "function":
        symbols = (symbol for symbol in scope.get_symbols() if symbol.get_name() in names)
        if any(
            symbol.is_referenced() and (symbol.is_global() or symbol.is_imported())
            for symbol in symbols
        ):
            yield f"{scope.get_name()}()"
    for inner in scope.get_children():
        yield from _users(inner, names)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(common.KernelOptions, common.FoldOptions):
    """How to run a bench; see ``kernbench run --help``."""

    program: str
    machine: common.BenchMachine = None
    ranks: common.Ranks = None
    max_restarts: common.MaxRestarts = 0
    param: list[str] | None = common.option(
        None, "--param", "-p", metavar="NAME=VALUE", help="A parameter of the bench."
    )


@dataclass(frozen=True, slots=True)
class _ReadyRun:
    """A run that can start: everything the user typed is valid."""

    bench: Bench
    machine: Machine
    changes: list[str]
    ranks: int
    params: Mapping[str, Any]


def run_bench(options: BenchOptions) -> int:
    """Run a bench, print and write its report, and return the exit status."""

    def start() -> int:
        plan = _plan(options)
        if options.is_folded:
            check_folding(options.data, plan.ranks, plan.machine, "--ranks N")
        with make_room(options, options.machine, [plan.bench.path, *imported()]) as outputs:
            return guarded(lambda: _run(plan, options, outputs), options.debug)

    try:
        return guarded(start, options.debug, usage=True)
    finally:
        gc.unfreeze()


def show_bench(text: str, debug: bool) -> int:
    """Print a bench's documentation and parameters, and return the exit status."""
    from kernbench.cli.programs.parameters import parameters_of
    from kernbench.hardware import ranks_of

    def show() -> int:
        bench = load_bench(text)
        parameters = parameters_of(bench.run)
        lines = [bench.about, "", f"usage: kernbench run {text} [OPTIONS]", ""]
        lines.append("parameters (--param NAME=VALUE):" if parameters else "no parameters")
        lines += [f"  {parameter}" for parameter in parameters]
        lines += [
            "",
            f"machine: {bench.machine} (--machine NAME); "
            f"ranks: {bench.ranks or ranks_of(bench.machine)} (--ranks N); "
            "options: kernbench run --help",
        ]
        print("\n".join(lines).lstrip("\n"))
        return DONE

    return guarded(show, debug, usage=True)


def _plan(options: BenchOptions) -> _ReadyRun:
    from kernbench.cli.programs.parameters import parameters_of, parse_parameters

    import_to_stay("kernbench.runtime_api")
    from kernbench.hardware import ranks_of

    bench = load_bench(options.program)
    params = parse_parameters(options.param or (), parameters_of(bench.run), bench.name)
    asked = bench.ranks if options.ranks is None else options.ranks
    name = bench.machine if options.machine is None else options.machine
    machine, changes = options.load_machine(name, asked)
    return _ReadyRun(bench, machine, changes, asked or ranks_of(name), params)


def _run(plan: _ReadyRun, options: BenchOptions, outputs: Outputs) -> int:
    from kernbench.runtime_api import with_restarts

    settings = {"ranks": plan.ranks, "seed": options.seed, "tf32": options.tf32}
    plain = context_of(options, plan.machine, plan.changes, **settings)

    def make_context(*, is_watched: bool = False) -> RuntimeContext:
        context = plain(is_watched=is_watched)
        context.run.remarks.append(lambda: unused_tf32(context, options.tf32, plan.bench.path))
        context.run.remarks.append(lambda: uses_of_own_torch(plan.bench.path))
        return context

    def work(context: RuntimeContext) -> int:
        with_restarts(
            context, lambda _: plan.bench.start(context, plan.params), options.max_restarts
        )
        return DONE

    return run_ranks(make_context, plan.ranks, work, options, outputs)
