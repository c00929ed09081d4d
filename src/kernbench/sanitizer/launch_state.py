"""What is known of one launch while it runs, and what its run has warned of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.checks import Checks
from kernbench.replay import PointerArg
from kernbench.sanitizer.facts.launch import Launched
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.ordering.programs import ProgramOrder
from kernbench.sanitizer.ordering.segments import Segments

Array = npt.NDArray[Any]


class Findings:
    """What a run has warned of: each check warns once."""

    def __init__(self) -> None:
        self._warned: set[type] = set()

    def wants(self, check: type) -> bool:
        """Return whether a check has not warned yet."""
        return check not in self._warned

    def once(self, check: type) -> bool:
        """Return whether a check has not warned yet, and take it that it does so now."""
        is_first = check not in self._warned
        self._warned.add(check)
        return is_first

    def warn(self, check: type, text: str, category: type[Warning]) -> None:
        """Warn, unless the check has done so in this run."""
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
    """Those of the launch alone, or of all launches that it may talk to."""
    pointers: Mapping[int, PointerArg] = field(default_factory=dict)
    """What it can reach, by parameter index; of a launch by data, known at its end."""
    begun: Clock | None = None
    """What it follows, where its clock may learn more."""
    order: ProgramOrder | None = None
    """What programs tell each other by atomics; None where nobody listens."""
    issued: tuple[Array, Array] | None = None
    """Of a write that takes effect later: the programs, and their segments at the time."""
    notes: dict[type, Any] = field(default_factory=dict)
    """By check, what it keeps for the launch: what its ``begin`` has returned."""

    @property
    def num_programs(self) -> int:
        x, y, z = self.grid
        return x * y * z

    def actors(self, programs: Array, *, plain: bool) -> Array:
        """Return who accesses memory: programs, or the segments that they are in.

        An atomic need not know what the program has found so far, a ``plain`` access has to.
        """
        if self.order is None:
            return programs
        if self.issued is not None:
            known, segments = self.issued
            return np.asarray(segments[np.searchsorted(known, programs)])
        return self.order.of(programs) if plain else np.asarray(self.order.current[programs])
