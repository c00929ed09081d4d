"""Where a tensor's bytes lie inside a SIP, as far as the time of kernels depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kernbench.hardware import SipSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """A tensor's home inside one SIP; hashable, so that it can be part of a memo's key.

    Attributes:
        num_cubes: Cubes that hold a part or a copy of the tensor, from cube 0 on.
        num_pes: PEs per cube that programs working on the tensor run on.
        copies: Whole copies: 1, or one per cube when the tensor is replicated.
    """

    num_cubes: int
    num_pes: int
    copies: int = 1

    @property
    def remote_fraction(self) -> Fraction:
        """The share of what a program reads that lies in another cube than its own."""
        if self.copies == self.num_cubes:
            return Fraction(0)
        return Fraction(self.num_cubes - 1, self.num_cubes)

    @staticmethod
    def interleaved(sip: SipSpec) -> Placement:
        """Return the home of a tensor without a policy: its pages spread over all cubes."""
        return Placement(sip.num_cubes, sip.pes_per_cube)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows and columns (each ``[first, last)``) of a tensor that belong to one PE."""

    cube: int
    pe: int
    rows: tuple[int, int]
    columns: tuple[int, int]
