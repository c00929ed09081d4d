"""Rows of ranks in a mesh of all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, order=True)
class RankAxis:
    """Numbers of ranks along one dimension of a mesh: ``size`` of them, ``stride`` apart."""

    stride: int
    size: int

    def position(self, rank: int) -> int:
        """Return where a rank is on the axis."""
        return rank // self.stride % self.size


def axis_of(ranks: tuple[int, ...], num_ranks: int) -> RankAxis | None:
    """Return the axis that a group's ranks are one row of, or None.

    The rows of an axis cover all ranks, so that ``stride * size`` divides their number.
    """
    axes = axes_of(ranks, num_ranks)
    return axes[0] if axes is not None and len(axes) == 1 else None


def axes_of(ranks: Sequence[int], num_ranks: int) -> tuple[RankAxis, ...] | None:
    """Return the axes that span a group, in whatever mesh of all ranks has them; None if none."""
    lowest = min(ranks)
    offsets = sorted(rank - lowest for rank in ranks)
    axes: list[RankAxis] = []
    spanned = [0]
    while len(spanned) < len(offsets):
        stride = offsets[len(spanned)]
        size = 1
        while len(spanned) * size < len(offsets) and _is_next(offsets, spanned, stride * size):
            size += 1
        if size == 1 or len(offsets) % (len(spanned) * size):
            return None
        spanned = [stride * step + number for step in range(size) for number in spanned]
        axes.append(RankAxis(stride, size))
    if spanned != offsets or any(num_ranks % (axis.stride * axis.size) for axis in axes):
        return None
    if any(low.stride * low.size > high.stride for low, high in pairwise(axes)):
        return None
    return tuple(axes) if all(axis.position(lowest) == 0 for axis in axes) else None


def _is_next(offsets: list[int], spanned: list[int], start: int) -> bool:
    """Return whether the next offsets are those before, from another start."""
    count = len(spanned)
    index = bisect_left(offsets, start)
    return [offset - start for offset in offsets[index : index + count]] == spanned


def shown(ranks: Sequence[int]) -> str:
    """Return a list of ranks in few words."""
    if len(ranks) <= 8:
        return ", ".join(map(str, ranks))
    return f"{ranks[0]}, {ranks[1]}, {ranks[2]}, ... {ranks[-1]}"
