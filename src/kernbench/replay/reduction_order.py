"""The order in which each chunk of a reduction adds the ranks, and chunks that can be joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kernbench.dtypes import Array

if TYPE_CHECKING:
    from kernbench.collectives import Schedule

Index = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
Sweep = tuple[int, int, int, int]
"""A rank, the range of its elements, and how they are combined into the result."""

BEGIN, RESULT_FIRST, RANK_FIRST = 0, 1, 2
"""They start the result, or are combined with it; the order of operands matters for NaNs."""

_MOST_ROUNDS = 3
_STRIP_BYTES = 256 * 1024
"""The part of the result that stays in the CPU's cache while all ranks are added to it, and while
it is copied to them. Shorter ones cost more calls of numpy than they save."""


def reduce_in_order(
    sweeps: Sequence[Sweep], combine: np.ufunc, works: Sequence[Array]
) -> Iterator[tuple[int, Array]]:
    """Yield the reduction of the ranks' 1-D arrays by the given sweeps, strip by strip.

    A strip comes with the number of its first element. It may be changed, and overwritten in the
    arrays: no later strip reads it.
    """
    first = works[0]
    length = max(_STRIP_BYTES // first.itemsize, 1)
    for start in range(0, len(first), length):
        result = np.empty_like(first[start : start + length])
        end = start + len(result)
        for rank, low, high, how in sweeps:
            if low < start:
                low = start
            if high > end:
                high = end
            if low >= high:
                continue
            part, array = result[low - start : high - start], works[rank][low:high]
            if how == RESULT_FIRST:
                combine(part, array, out=part)
            elif how == BEGIN:
                part[:] = array
            else:
                combine(array, part, out=part)
        yield start, result


@lru_cache(maxsize=256)
def sweeps_of(schedule: Schedule) -> tuple[Sweep, ...] | None:
    """Return operations on long runs of chunks that reduce in the order of the schedule's steps.

    All ranks that receive a result receive this one. None if ranks get different results, a chunk
    is not reduced by adding one rank after another (as in a tree), or the chunks' orders of ranks
    have little in common.
    """
    taken = _taken(schedule)
    if taken is None:
        return None
    orders, is_first = taken
    n = schedule.num_ranks
    falls = (orders[:, 1] - orders[:, 0]) % n > n // 2
    bounds = np.array([0, schedule.num_elements]) if schedule.fold else schedule.chunk_bounds
    sweeps: list[Sweep] = []
    # Ranks are added in ascending or descending cyclic order, starting at a chunk's first rank.
    for chunks, sign, origin in ((~falls, 1, 0), (falls, -1, -1)):
        numbers = np.flatnonzero(chunks)
        if len(numbers):
            mine = orders[numbers]
            turns = _turns(sign * (mine - mine[origin, 0]) % n, n)
            if turns.max() >= _MOST_ROUNDS * n:
                return None
            sweeps += _joined(turns, numbers, mine, is_first[numbers], bounds)
    return tuple(sweeps)


def _taken(schedule: Schedule) -> tuple[Index, Marks] | None:
    """Return per chunk the ranks in order, each with whether the sum is the first operand."""
    n, num_chunks = schedule.num_ranks, schedule.num_chunks
    if schedule.fold:
        return np.arange(n, dtype=np.int64)[None], np.ones((1, n), dtype=np.bool_)
    ends, received, own = _sums(schedule)
    if ends is None:
        return None
    orders = np.empty((num_chunks, n), dtype=np.int64)
    is_first = np.ones((num_chunks, n), dtype=np.bool_)
    for place in range(n - 1, 0, -1):
        if (ends < n).any():
            return None
        left, right = received[ends - n], own[ends - n]
        grows = right < n
        if (~grows & (left >= n)).any():
            return None
        if place == 1 and n > 2:
            # Of the first two ranks either may be the sum so far: operands keep their sides.
            grows = is_first[:, 2]
        is_first[:, place] = grows
        orders[:, place] = np.where(grows, right, left)
        ends = np.where(grows, left, right)
    orders[:, 0] = ends
    return None if (orders >= n).any() else (orders, is_first)


def _sums(schedule: Schedule) -> tuple[Index | None, Index, Index]:
    """Trace the steps: return each chunk's final sum, and the operands of all sums.

    A number below ``num_ranks`` is that rank's own data; others are ``num_ranks`` plus an index
    into the operands. None if ranks end with different sums.
    """
    n = schedule.num_ranks
    held = np.repeat(np.arange(n, dtype=np.int64)[:, None], schedule.num_chunks, axis=1)
    received, own, count = [np.empty(0, np.int64)], [np.empty(0, np.int64)], n
    for step in schedule.steps:
        chunks = step.chunk[:, None] + np.arange(step.span)
        sent = held[step.src[:, None], chunks]
        if step.reduce:
            received.append(sent.ravel())
            own.append(held[step.dst[:, None], chunks].ravel())
            sent = np.arange(count, count + sent.size).reshape(sent.shape)
            count += sent.size
        held[step.dst[:, None], chunks] = sent
    if schedule.op == "reduce_scatter":
        ends: Index | None = held.diagonal()
    elif schedule.op == "reduce":
        ends = held[schedule.root]
    else:
        ends = held[0] if (held == held[0]).all() else None
    return ends, np.concatenate(received), np.concatenate(own)


def _turns(positions: Index, n: int) -> Index:
    """Return the turn at which each rank is added in a cyclic order."""
    turns = positions.copy()
    turns[:, 1:] = (np.diff(positions, axis=1) - 1) % n + 1
    return turns.cumsum(axis=1)


def _joined(
    turns: Index, chunks: Index, orders: Index, is_first: Marks, bounds: Index
) -> list[Sweep]:
    """Return the sweeps turn by turn, with equal ones of adjacent chunks joined."""
    hows = np.where(is_first, RESULT_FIRST, RANK_FIRST)
    hows[:, 0] = BEGIN
    chunk = np.broadcast_to(chunks[:, None], turns.shape).ravel()
    by_turn = np.lexsort((chunk, turns.ravel()))
    chunk, rank, how, turn = (array.ravel()[by_turn] for array in (chunk, orders, hows, turns))
    breaks = (np.diff(turn) != 0) | (np.diff(how) != 0) | (np.diff(chunk) != 1)
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    last = np.concatenate([starts[1:], [len(chunk)]]) - 1
    result = zip(
        rank[starts].tolist(),
        bounds[chunk[starts]].tolist(),
        bounds[chunk[last] + 1].tolist(),
        how[starts].tolist(),
        strict=True,
    )
    return [sweep for sweep in result if sweep[1] < sweep[2]]
