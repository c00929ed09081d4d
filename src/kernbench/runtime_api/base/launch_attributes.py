"""What a program states about a launch besides its arguments, like CUDA's launch attributes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kernbench.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttributes:
    """How a launch uses the device, for ``torch.launch(..., attributes=...)``.

    Attributes:
        follows: Its start overlaps the end of the kernel before it on the stream (programmatic
            dependent launch): the front end takes ``queued_front_end_us``.
        cached: (parameter name, share) of the pointers of which the cache keeps a share (an
            access policy window): so much does not come from HBM, and stores do not go there.

    >>> LaunchAttributes(follows=True, cached=(("x_ptr", Fraction(1, 2)),)).cached
    (('x_ptr', Fraction(1, 2)),)
    """

    follows: bool = False
    cached: tuple[tuple[str, Fraction], ...] = ()

    def __post_init__(self) -> None:
        for name, share in self.cached:
            if not 0 <= share <= 1:
                raise UsageError(
                    f"the cached share of parameter {name} must be from 0 to 1, but got {share}"
                )


PLAIN_LAUNCH = LaunchAttributes()
"""A launch without attributes."""
