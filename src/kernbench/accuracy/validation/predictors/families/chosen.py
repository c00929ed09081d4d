"""What a row of a program asks for, and which family of programs it is of."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.accuracy.programs import Program
from kernbench.accuracy.validation.rows.reference import Row

A100_80G = "A100-SXM4-80GB"
"""The device of sources that say A100, or none, and by what they ran mean the 80 GB module."""
A100_40G = "A100-SXM4-40GB"
"""The device of sources that say A100, and elsewhere that it is the one of 40 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenProgram:
    """A program, and how its step's time becomes the row's."""

    program: Program
    device: str = ""
    """Where the row's own name of the device does not say which it is; else empty."""
    units: float = 1.0
    """How many of what the row's time is of are in a step; 1 where it is of a step."""


def is_compiled(row: Row) -> bool:
    """Return whether the row's program was compiled: by torch.compile, or another compiler."""
    said = row.fields.get("compile", "").strip()
    return not (said in ("", "eager") or said.startswith("no"))
