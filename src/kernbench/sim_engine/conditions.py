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
        cached: (parameter index, share) of the pointer parameters of which the cache holds a
            part when the kernel starts; machines without a cache do not care.
        queued: Whether the kernel waited in the device's queue behind another one.
    """

    placements: tuple[tuple[int, Placement], ...] = ()
    comm_share: Fraction = Fraction(0)
    cached: tuple[tuple[int, Fraction], ...] = ()
    queued: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.comm_share < 1:
            raise UsageError(f"comm_share must be 0 or more and below 1, but got {self.comm_share}")
        for param, share in self.cached:
            if not 0 <= share <= 1:
                raise UsageError(
                    f"the cached share of parameter {param} must be from 0 to 1, but got {share}"
                )
        steps = min(math.ceil(self.comm_share * COMM_SHARE_STEPS), COMM_SHARE_STEPS - 1)
        object.__setattr__(self, "comm_share", Fraction(steps, COMM_SHARE_STEPS))
