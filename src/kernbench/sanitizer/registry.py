"""The checks of the sanitizer, in the order in which they look at a command."""

from __future__ import annotations

from kernbench.checks import Checks
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.checks.collisions import Collisions
from kernbench.sanitizer.checks.conversions import Conversions
from kernbench.sanitizer.checks.non_finite import NonFinite
from kernbench.sanitizer.checks.operations import OperationRaces
from kernbench.sanitizer.checks.overflow import Overflow
from kernbench.sanitizer.checks.races import Races
from kernbench.sanitizer.checks.undefined import Undefined
from kernbench.sanitizer.checks.unwritten import Unwritten

CHECKS: tuple[type[Check], ...] = (
    Undefined,
    Overflow,
    Conversions,
    OperationRaces,
    # A race is said as a race, though the second program may find nothing written.
    Races,
    Unwritten,
    NonFinite,
    # What another program has replaced is a race, and found as one.
    Collisions,
)
"""Bounds are no check: they are looked at in every run, where an access finds its lanes."""


def selected(checks: Checks) -> tuple[type[Check], ...]:
    """Return the checks of a run: all but those whose mistake it allows."""
    return tuple(each for each in CHECKS if each.allowed_by not in checks.allowed)
