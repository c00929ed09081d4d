"""Programs that are run and kept, and comparisons of what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernbench import RuntimeContext
from kernbench.hardware import Machine
from kernbench.op_log import OpLog
from kernbench.retiming import Retiming
from kernbench.saved import SavedRun, load_run, save_run

Program = Callable[[Any], object]


def run_and_keep(
    program: Program, machine: str | Machine, path: Path, ranks: int | None = None
) -> tuple[OpLog, SavedRun]:
    """Run a program; return its log, and the run as it was kept."""
    with RuntimeContext(machine, ranks) as torch:
        torch.keep_actions()
        program(torch)
    save(torch, path)
    return torch.op_log, load_run(path)


def save(torch: RuntimeContext, path: Path) -> None:
    with path.open("wb") as out:
        save_run(out, torch.op_log, torch.machine, torch.report(), actions=torch.run.actions())


def retime(saved: SavedRun, machine: Machine | None = None) -> RuntimeContext:
    retiming = Retiming(saved, saved.machine if machine is None else machine)
    with retiming.context:
        retiming.work()
    return retiming.context


def waits_of(log: OpLog) -> list[tuple[int, int, int]]:
    """Return who waited, until when, and for what launch."""
    values = iter(log.plain_waits)
    return [
        (rank, end, log.number_of(after)) for rank, end, after in zip(*[values] * 3, strict=True)
    ]


def assert_same(op_log: OpLog, expected: OpLog) -> None:
    """Hold two logs to each other: each row, wait and host."""
    assert op_log.end_ps == expected.end_ps
    assert op_log.to_arrow().equals(expected.to_arrow())
    assert op_log.host_spans == expected.host_spans
    assert waits_of(op_log) == waits_of(expected)
    assert op_log.woken == expected.woken
    assert op_log.sites == expected.sites
    assert op_log.graphs == expected.graphs
    assert op_log.host_ranges == expected.host_ranges
