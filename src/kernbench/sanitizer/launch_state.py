"""The sanitizer's state of one running launch, and the warnings of its run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernbench.checks import Checks
from kernbench.dtypes import Array
from kernbench.replay import PointerArg
from kernbench.sanitizer.facts.launch import Launched
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.ordering.programs import ProgramOrder
from kernbench.sanitizer.ordering.segments import Segments


class Findings:
    """The warnings of a run: each check warns once."""

    def __init__(self) -> None:
        self._warned: set[type] = set()

    def wants(self, check: type) -> bool:
        """Return whether a check has not warned yet."""
        return check not in self._warned

    def once(self, check: type) -> bool:
        """Return whether a check has not warned yet, and record that it does so now."""
        is_first = check not in self._warned
        self._warned.add(check)
        return is_first

    def warn(self, check: type, text: str, category: type[Warning]) -> None:
        """Warn, unless the check has already done so in this run."""
        if self.once(check):
            warnings.warn(f"{text} (said once per run)", category, stacklevel=2)


@dataclass(slots=True, eq=False)
class LaunchState:
    """The state of one launch; a new one for every launch."""

    launched: Launched
    grid: tuple[int, int, int]
    params: Sequence[PointerArg | float | int | None]
    checks: Checks
    findings: Findings
    segments: Segments
    """The segments of the launch, or of all launches with which it may synchronize."""
    pointers: Mapping[int, PointerArg] = field(default_factory=dict)
    """What it can access, by parameter index; for a data-dependent launch, known at its end."""
    begun: Clock | None = None
    """What it follows, if its clock may still learn more."""
    order: ProgramOrder | None = None
    """The synchronization of programs by atomics; None if there is none."""
    issued: tuple[Array, Array] | None = None
    """For a write that takes effect later: its programs, and their segments at its issue."""
    notes: dict[type, Any] = field(default_factory=dict)
    """Each check's data for the launch, as its ``begin`` returned it."""

    @property
    def num_programs(self) -> int:
        x, y, z = self.grid
        return x * y * z

    def actors(self, programs: Array, *, plain: bool) -> Array:
        """Return the accessing programs, or their current segments.

        A ``plain`` access must acquire what the program has found so far; an atomic need not.
        """
        if self.order is None:
            return programs
        if self.issued is not None:
            known, segments = self.issued
            return np.asarray(segments[np.searchsorted(known, programs)])
        return self.order.of(programs) if plain else np.asarray(self.order.current[programs])
