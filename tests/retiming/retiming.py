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


def assert_same(found: OpLog, expected: OpLog) -> None:
    """Hold two logs to each other: each row, wait and host."""
    assert found.end_ps == expected.end_ps
    assert found.to_arrow().equals(expected.to_arrow())
    assert found.host_spans == expected.host_spans
    assert waits_of(found) == waits_of(expected)
    assert found.woken == expected.woken
    assert found.sites == expected.sites
    assert found.graphs == expected.graphs
    assert found.host_ranges == expected.host_ranges
