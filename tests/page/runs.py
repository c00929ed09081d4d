"""Saved runs for tests of pages, made of logs by hand or of small programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernbench import RuntimeContext, ops
from kernbench.hardware import load_machine
from kernbench.op_log import OpLog
from kernbench.page import dump_page
from kernbench.report import build_report
from kernbench.saved import SavedRun, load_run, save_run


def kept(path: Path, log: OpLog, ranks: int, *, program: str = "bench.py") -> SavedRun:
    """Save a log of a LogBuilder as a run of ahbm, and load it."""
    for instance in log.instances:
        instance.launch_id += 1  # runs count from 1; 0 is nobody
    machine = load_machine(f"ahbm:{ranks}", ranks)
    report = {**build_report(log, machine, ranks=ranks, wall_s=1.0)}
    with path.open("w+b") as out:
        save_run(out, log, machine, report, program=program)
    return load_run(path)


def simulated(
    path: Path, work: Callable[..., Any], ranks: int = 2, machine: str = "ahbm"
) -> SavedRun:
    """Run a program, save the run and load it."""
    with RuntimeContext(machine=machine, ranks=ranks, record_memory=True) as torch:
        torch.multiprocessing.spawn(work, (torch,), nprocs=ranks)
    with path.open("w+b") as out:
        save_run(out, torch.op_log, torch.machine, {**torch.report()}, program="bench.py")
    return load_run(path)


def two_layers(rank: int, torch: Any) -> None:
    """Products, an activation and an all-reduce; later ranks come later."""
    torch.distributed.init_process_group()
    x = torch.randn(256, 256, dtype="f16")
    for _ in range(2 + rank):
        x = ops.gelu(x @ x)
    torch.distributed.all_reduce(x)
    torch.ahbm.synchronize()


def write_page(path: Path, run: SavedRun, before: SavedRun | None = None) -> Path:
    """Write a run's page to a file."""
    with path.open("wb") as out:
        dump_page(out, run, before)
    return path
