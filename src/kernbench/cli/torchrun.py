"""``kernbench torchrun``: an unmodified PyTorch program on the devices of a machine (ADR-0060)."""

from __future__ import annotations

import gc
import importlib
import sys
from dataclasses import dataclass

from kernbench.cli.run import DONE, FAILED, Outputs, guarded, make_room, run_and_report
from kernbench.cli.script import compile_program, find_script
from kernbench.errors import UsageError
from kernbench.hardware import load_machine


@dataclass(frozen=True, kw_only=True)
class TorchrunOptions(Outputs):
    """What ``kernbench torchrun`` was given; see ``kernbench torchrun --help``."""

    script: str
    args: tuple[str, ...]
    nprocs: int
    machine: str
    data: bool
    ranks_print: str
    """The ranks whose output is shown: numbers, or ``all``."""
    prefix: bool


def torchrun(options: TorchrunOptions) -> int:
    """Run a program, report, and return its exit status."""

    def start() -> int:
        path = find_script(options.script)
        if options.nprocs < 1:
            raise UsageError(f"--nproc-per-node must be at least 1, but got {options.nprocs}")
        # A program in one process may start ranks itself, as many as there are devices.
        machine = load_machine(options.machine, None if options.nprocs == 1 else options.nprocs)
        make_room(options)
        from kernbench.torch_bridge import check_torch, run_torchrun

        check_torch()
        _import_bridge()
        shown = _ranks(
            options.ranks_print, options.nprocs if options.nprocs > 1 else machine.num_sips
        )
        code = compile_program(path)
        from kernbench.runtime_api import RuntimeContext

        context = RuntimeContext(machine=machine, data=options.data)

        def work() -> int:
            try:
                run_torchrun(
                    context,
                    path,
                    code,
                    options.args,
                    options.nprocs,
                    shown=shown,
                    with_rank=options.prefix,
                )
            except SystemExit as end:
                if end.code is None or isinstance(end.code, int):
                    return end.code or DONE
                print(end.code, file=sys.stderr)
                return FAILED
            return DONE

        return guarded(lambda: run_and_report(context, options, work), options.debug)

    try:
        return guarded(start, options.debug, usage=True)
    finally:
        gc.unfreeze()


def _import_bridge() -> None:
    """Import PyTorch, without looking for garbage among its half a million objects ever again."""
    gc.disable()
    try:
        importlib.import_module("kernbench.torch_bridge.programs")
    finally:
        gc.enable()
    gc.freeze()


def _ranks(text: str, most: int) -> frozenset[int] | None:
    """Return the ranks that an option names, None for all.

    Raises:
        UsageError: It names none, or one that cannot be.
    """
    if text == "all":
        return None
    try:
        ranks = frozenset(int(part) for part in text.split(","))
    except ValueError:
        ranks = frozenset((-1,))
    if not all(0 <= rank < most for rank in ranks):
        raise UsageError(
            f"--ranks-print must be all, or ranks from 0 to {most - 1} such as 0 or 0,1, but got "
            f"{text!r}"
        )
    return ranks
