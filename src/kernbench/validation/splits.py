"""What was fitted per machine, and how it does on GEMM rows that fits keep apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.hardware import fitted_constants
from kernbench.validation.devices import Machines
from kernbench.validation.goals import fitted_to
from kernbench.validation.parts import is_apart
from kernbench.validation.reference import Category
from kernbench.validation.score import Scored, measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The errors of one machine's GEMM rows, those that a fit may have seen and the others."""

    machine: str
    constants: int
    """Numbers of the machine that were fitted, to rows of any category."""
    source: str
    fit_rows: int
    fit_mape: float | None
    apart_rows: int
    apart_mape: float | None


def splits_of(scored: Sequence[Scored], machines: Machines) -> list[Split]:
    """Return a line for each machine and source that its GEMM constants were fitted to."""
    found: dict[tuple[str, str], list[Scored]] = {}
    for each in scored:
        row = each.row
        if row.category is Category.GEMM and row.source in fitted_to(row, machines):
            found.setdefault((row.device, row.source), []).append(each)
    lines = []
    for (device, source), rows in sorted(found.items()):
        machine = machines.machine_of(device)
        parts = [
            measure(each for each in rows if is_apart(each.row) is apart) for apart in (False, True)
        ]
        lines.append(
            Split(
                machine=machine.name,
                constants=len(fitted_constants(machine.spec)),
                source=source,
                fit_rows=parts[0].rows,
                fit_mape=parts[0].mape,
                apart_rows=parts[1].rows,
                apart_mape=parts[1].mape,
            )
        )
    return lines
