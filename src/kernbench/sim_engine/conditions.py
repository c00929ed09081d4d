"""What a kernel's schedule depends on besides the kernel and the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from kernbench.errors import UsageError
from kernbench.policy import Placement

COMM_SHARE_STEPS = 16
"""Shares of HBM are rounded up to a multiple of one over this, so that schedules are met again."""


@dataclass(frozen=True)
class Conditions:
    """The state of a SIP that a launch meets; hashable, so that schedules can be memoised.

    Attributes:
        placements: (parameter index, placement) of the pointer parameters that have a policy;
            a tensor without one is spread over all cubes.
        comm_share: Share of HBM bandwidth that transfers in flight take, from 0 to below 1.
    """

    placements: tuple[tuple[int, Placement], ...] = ()
    comm_share: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if not 0 <= self.comm_share < 1:
            raise UsageError(f"comm_share must be 0 or more and below 1, but got {self.comm_share}")
        steps = min(math.ceil(self.comm_share * COMM_SHARE_STEPS), COMM_SHARE_STEPS - 1)
        object.__setattr__(self, "comm_share", Fraction(steps, COMM_SHARE_STEPS))
