"""Running a program that is unaware of kernbench, its PyTorch tensors on the CPU (ADR-0050)."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from kernbench.cli import options as common
from kernbench.cli.programs.bench_file import installed_command, is_bench, reason_for_none
from kernbench.cli.programs.reporting import (
    DONE,
    context_of,
    guarded,
    make_room,
    run_and_report,
    unused_tf32,
)
from kernbench.errors import UnknownNameError, UsageError
from kernbench.hardware import Machine
from kernbench.open_files import LeftOpen


@dataclass(frozen=True, kw_only=True)
class ScriptOptions(common.KernelOptions):
    """How to run a script; see ``kernbench script --help``."""

    program: str = common.argument(
        "", metavar="FILE", help="A Python program that launches Triton kernels."
    )
    args: common.Args = None
    machine: common.Machine = "ahbm"
    target: str | None = common.option(
        None,
        metavar="NAME",
        help="What Triton's get_current_target() tells the program: cuda, hip; else kernbench.",
    )


def run_script(options: ScriptOptions, asked: Callable[[Path], None] = lambda path: None) -> int:
    """Run a program as ``python FILE ARGS`` would, report, and return its exit status.

    ``asked`` is called with its path when it first asks PyTorch for a GPU.
    """

    def start() -> int:
        from kernbench.cli.programs.parameters import exit_status, say_whose_options

        path = find_script(options.program)
        machine, changes = options.load_machine(options.machine, 1)
        from kernbench.triton_backend import check_announced

        check_announced(options.target)
        code = compile_program(path, "script")

        settings = {"ranks": 1, "seed": options.seed, "tf32": options.tf32}
        context = context_of(options, machine, changes, **settings)()
        args = options.args or []
        say_whose_options(path, args, options.own_options)
        context.run.remarks.append(lambda: unused_tf32(context, options.tf32, path))

        def work() -> int:
            try:
                argv = [options.program, *args]
                run_program(path, code, argv, machine, options.target, cache(partial(asked, path)))
            except SystemExit as end:
                return exit_status(end)
            return DONE

        with make_room(options, options.machine, [path]) as outputs:
            return guarded(lambda: run_and_report(context, options, outputs, work), options.debug)

    return guarded(start, options.debug, usage=True)


def find_script(text: str) -> Path:
    """Return the path of a program, which may be an installed command.

    Raises:
        UnknownNameError: There is no such file.
        UsageError: It is a folder, or no name at all.
    """
    if not text:
        raise UsageError("name a program: a Python file, or an installed command")
    path = Path(text)
    command = None if path.exists() or len(path.parts) > 1 else installed_command(text)
    if command is not None:
        return command
    if path.is_dir():
        raise UsageError(f"{text} is a folder; name a Python file in it")
    if not path.is_file():
        raise UnknownNameError(f"no script {text}: {reason_for_none(path)}")
    return path.absolute()


_ARCHITECTURE = 80
"""What a program sees of a machine that is not CUDA's: a device with every feature of Triton."""


def properties_of(machine: Machine) -> dict[str, Any]:
    """Return what ``torch.cuda.get_device_properties`` says about a SIP of a machine."""
    sip, architecture = machine.sip, machine.spec.cuda_architecture or _ARCHITECTURE
    return {
        "name": f"{machine.name} (simulated)",
        "major": architecture // 10,
        "minor": architecture % 10,
        "multi_processor_count": sip.num_pes,
        "total_memory": sip.hbm_bytes,
        "shared_memory_per_block_optin": sip.shared_memory_bytes,
        "warp_size": 32,
        "max_threads_per_multi_processor": 2048,
    }


def compile_program(path: Path, command: str) -> CodeType:
    """Return a program's code.

    Raises:
        UsageError: The file is not a Python file, or is a bench, which ``command`` does not run.
    """
    source = path.read_bytes()
    if b"\0" in source:
        said = "it has null bytes; kernbench why and the like read what --save has kept"
        raise UsageError(f"{path.name} is not a Python file: {said}")
    tree = ast.parse(source, str(path))
    if is_bench(tree):
        raise UsageError(
            f"{path.name} is a bench: it defines run() and does nothing itself; "
            f"use kernbench run {path.name}, not kernbench {command}"
        )
    return compile(tree, str(path), "exec")


def run_program(
    path: Path,
    code: CodeType,
    argv: list[str],
    machine: Machine,
    target: str | None = None,
    asked: Callable[[], None] = lambda: None,
) -> None:
    """Run a program inside the active run; it may end by ``SystemExit``.

    ``target`` is what it hears of the target, if not the truth; ``asked`` is called whenever it
    asks PyTorch for a GPU.
    """
    from kernbench.cli.programs.torch_stand_in import torch_stands_in
    from kernbench.runtime_api import current_context
    from kernbench.triton_backend import announced_target

    context, architecture = current_context(), machine.spec.cuda_architecture
    with (
        torch_stands_in(properties_of(machine), context.run.lent.lend, context.has_data, asked),
        announced_target(target, architecture if target == "cuda" else None),
        as_main(path, argv) as module,
    ):
        exec(code, module.__dict__)


@contextmanager
def as_main(path: Path, argv: list[str]) -> Iterator[ModuleType]:
    """Give a program the environment of ``python FILE ARGS``: module, arguments, import path."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __builtins__=builtins)
    files = LeftOpen()
    before = sys.modules["__main__"], sys.argv, sys.path[:]
    sys.modules["__main__"] = module
    sys.argv = argv
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield module
    finally:
        files.keep()
        files.close()
        sys.modules["__main__"], sys.argv, sys.path[:] = before
