"""The checks of the sanitizer, in the order in which they check a command."""

from __future__ import annotations

from kernbench.checks import Checks
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.checks.arithmetic import Arithmetic
from kernbench.sanitizer.checks.collisions import Collisions
from kernbench.sanitizer.checks.conversions import Conversions
from kernbench.sanitizer.checks.hints import Hints
from kernbench.sanitizer.checks.non_finite import NonFinite
from kernbench.sanitizer.checks.operations import OperationRaces
from kernbench.sanitizer.checks.overflow import Overflow
from kernbench.sanitizer.checks.races import Races
from kernbench.sanitizer.checks.undefined import Undefined
from kernbench.sanitizer.checks.unwritten import Unwritten
from kernbench.sanitizer.checks.warps import Warps

CHECKS: tuple[type[Check], ...] = (
    Undefined,
    Overflow,
    Hints,
    Conversions,
    Arithmetic,
    OperationRaces,
    # A race is reported as a race, even if the second program also finds unwritten memory.
    Races,
    Warps,
    Unwritten,
    NonFinite,
    # A value replaced by another program is a race, and reported as one.
    Collisions,
)
"""Bounds are not a check: every run tests them when an access computes its lanes."""


def selected(checks: Checks) -> tuple[type[Check], ...]:
    """Return the checks of a run: all but those whose mistakes it allows."""
    return tuple(check for check in CHECKS if check.allowed_by not in checks.allowed)
