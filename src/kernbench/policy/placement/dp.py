"""How one tensor lies over the cubes and PEs of ONE SIP (ADR-0026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernbench.errors import UsageError
from kernbench.hardware import SipSpec
from kernbench.policy.placement.placement import Piece, Placement

Layout = Literal["replicate", "row_wise", "column_wise"]
_LAYOUTS = ("replicate", "row_wise", "column_wise")
Span = tuple[int, int]


@dataclass(frozen=True)
class DPPolicy:
    """Placement inside a SIP; it never crosses SIPs (that is what tensor parallelism is for).

    Attributes:
        cube: How rows or columns spread over cubes: ``replicate``, ``row_wise``, ``column_wise``.
        pe: The same over the PEs of a cube.
        num_cubes: Cubes used; None for all of the SIP's.
        num_pes: PEs used per cube; None for all.
    """

    cube: Layout = "replicate"
    pe: Layout = "replicate"
    num_cubes: int | None = None
    num_pes: int | None = None

    def __post_init__(self) -> None:
        for key in ("cube", "pe"):
            value = getattr(self, key)
            if value not in _LAYOUTS:
                raise UsageError(
                    f"DPPolicy {key} must be one of {', '.join(_LAYOUTS)}, but got {value!r}"
                )
        for key in ("num_cubes", "num_pes"):
            count = getattr(self, key)
            if count is not None and count < 1:
                raise UsageError(f"DPPolicy {key} must be at least 1, but got {count}")

    def resolve(self, sip: SipSpec) -> Placement:
        """Return where a tensor with this policy lies on a SIP.

        Raises:
            UsageError: The policy asks for more cubes or PEs than the SIP has.
        """
        num_cubes = _within(self.num_cubes, sip.num_cubes, "num_cubes", "cubes in a SIP")
        num_pes = _within(self.num_pes, sip.pes_per_cube, "num_pes", "PEs in a cube")
        return Placement(num_cubes, num_pes, num_cubes if self.cube == "replicate" else 1)

    def pieces(self, sip: SipSpec, rows: int, columns: int) -> tuple[Piece, ...]:
        """Return which part of a ``rows`` x ``columns`` tensor every PE in use works on.

        Parts are contiguous and differ by at most one row or column; a PE may have none.

        Raises:
            UsageError: The policy asks for more cubes or PEs than the SIP has.
        """
        place = self.resolve(sip)
        result = []
        for cube in range(place.num_cubes):
            cube_rows, cube_columns = _cut(
                self.cube, (0, rows), (0, columns), cube, place.num_cubes
            )
            for pe in range(place.num_pes):
                pe_rows, pe_columns = _cut(self.pe, cube_rows, cube_columns, pe, place.num_pes)
                result.append(Piece(cube, pe, pe_rows, pe_columns))
        return tuple(result)


def _within(asked: int | None, available: int, key: str, what: str) -> int:
    if asked is None:
        return available
    if asked > available:
        raise UsageError(f"DPPolicy {key} is {asked}, but there are {available} {what}")
    return asked


def _cut(layout: Layout, rows: Span, columns: Span, index: int, count: int) -> tuple[Span, Span]:
    if layout == "row_wise":
        return _share(rows, index, count), columns
    if layout == "column_wise":
        return rows, _share(columns, index, count)
    return rows, columns


def _share(span: Span, index: int, count: int) -> Span:
    first, last = span
    size = last - first
    return first + size * index // count, first + size * (index + 1) // count
