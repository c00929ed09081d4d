"""What was fitted per machine, and the errors on GEMM rows that fits hold out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.accuracy.rows import Category, Machines, is_apart
from kernbench.accuracy.score import Scored, measure
from kernbench.hardware import fitted_constants
from validation.scores.goals import fitted_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The fitted constants of one device's machine, and the errors of its GEMM rows."""

    device: str
    machine: str
    constants: int
    """How many numbers of the machine were fitted, to rows of any category."""
    said: str
    """What the machine's file says about those that GEMMs determine."""
    fit_rows: int
    """Rows of the sources named there, in the parts that a fit may use."""
    fit_mape: float | None
    apart_rows: int
    """The held-out rows of those sources."""
    apart_mape: float | None


def splits_of(scored: Sequence[Scored], machines: Machines) -> list[Split]:
    """Return a :class:`Split` for each device with predicted rows of kernels and collectives."""
    found: dict[str, list[Scored]] = {}
    for each in scored:
        if each.answer.time_us is not None and each.row.category is not Category.PROGRAMS:
            found.setdefault(each.row.device, []).append(each)
    return [_split(device, rows, machines) for device, rows in sorted(found.items())]


def _split(device: str, rows: Sequence[Scored], machines: Machines) -> Split:
    machine, said = machines.machine_of(device), fitted_to(rows[0].row, machines)
    named = [
        each for each in rows if each.row.category is Category.GEMM and each.row.source in said
    ]
    seen, apart = (
        measure(each for each in named if is_apart(each.row) is kept) for kept in (False, True)
    )
    return Split(
        device=device,
        machine=machine.name,
        constants=len(fitted_constants(machine.spec)),
        said=said,
        fit_rows=seen.rows,
        fit_mape=seen.mape,
        apart_rows=apart.rows,
        apart_mape=apart.mape,
    )
