"""Loads of one loop's body, which are under way together (ADR-0081 D1).

Each resource serves the loads of an iteration in their order, and none waits for another: a load is
there when every resource has served it and the loads before it. So a load that waits for HBM and
one that the cache serves take what the busier of the two needs, and no load takes longer because
some resource became faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernbench.commands import Loop, loop_dim
from kernbench.kernel_time.program.pipeline import Cost

Needs = tuple[int, int, int, int]
"""Picoseconds on the PE's port, on its share of HBM, of the cache, and of links between cubes."""
_NOTHING: Needs = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What one load asks of every resource."""

    dims: tuple[int, ...]
    """Loops that it varies over, as dims, outermost first."""
    shape: tuple[int, ...]
    """Their trip counts."""
    needs: tuple[Needs, ...]
    """By iteration of these loops, or a single one where all are alike."""

    @classmethod
    def of(cls, dims: tuple[int, ...], shape: tuple[int, ...], needs: Sequence[Needs]) -> Load:
        """Return the load that asks ``needs`` in its iterations, the outermost loop's first."""
        if len(set(needs)) > 1:
            return cls(dims, shape, tuple(needs))
        return cls((), (), (*needs[:1],) or (_NOTHING,))


@dataclass(frozen=True, slots=True, eq=False)
class Overlapped:
    """What a load keeps its queue busy with when others are under way beside it."""

    occupancy: Cost
    varies: tuple[int, ...]
    """Loops (by id, outermost first) that index the occupancy."""
    total_ps: int
    """Of so many iterations, what issuing it takes aside."""
    iterations: int = 1

    def busy_ps(self, count: int, issue_ps: int) -> int:
        """Return how long a program that runs it so often keeps the queue busy."""
        return issue_ps * count + self.total_ps * (count // self.iterations)


def overlapped(loads: Sequence[Load], loops: Sequence[Loop], issue_ps: int) -> list[Overlapped]:
    """Return what each of the loads of one body takes, which ``loops`` are around.

    Issuing them stays one after the other.
    """
    used = {dim for load in loads for dim in load.dims}
    if not used:
        totals = _NOTHING
        before, found = 0, []
        for load in loads:
            port, hbm, cache, between = load.needs[0]
            totals = (totals[0] + port, totals[1] + hbm, totals[2] + cache, totals[3] + between)
            end = max(totals)
            found.append(Overlapped(issue_ps + end - before, (), end - before))
            before = end
        return found
    dims = [dim for dim in (loop_dim(loop.loop_id) for loop in loops) if dim in used]
    needs = np.broadcast_arrays(*(_aligned(load, dims) for load in loads))
    ends = np.cumsum(needs, axis=0).max(axis=-1)
    return [_as_cost(each, dims, issue_ps) for each in np.diff(ends, axis=0, prepend=0)]


def _aligned(load: Load, dims: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return its needs with an axis for every one of ``dims``, and one for the resources."""
    lengths = dict(zip(load.dims, load.shape, strict=True))
    shape = (*(lengths.get(dim, 1) for dim in dims), len(load.needs[0]))
    return np.array(load.needs, dtype=np.int64).reshape(shape)


def _as_cost(taken: npt.NDArray[np.int64], dims: Sequence[int], issue_ps: int) -> Overlapped:
    first = int(taken.flat[0])
    if (taken == first).all():
        return Overlapped(issue_ps + first, (), first)
    nested = _nested((taken + issue_ps).tolist())
    return Overlapped(nested, tuple(dim - 1 for dim in dims), int(taken.sum()), taken.size)


def _nested(costs: list[object] | int) -> Cost:
    if isinstance(costs, list):
        return tuple(_nested(each) for each in costs)  # type: ignore[arg-type]
    return costs
