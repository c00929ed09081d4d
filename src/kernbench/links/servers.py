"""Servers that take their work one after the other, all of them at once.

A server that is free at ``f`` and is handed work ``w`` whose head arrives at ``h`` and whose tail
arrives at ``t`` begins at ``max(h, f)`` and is free again at ``max(f + w, h + w, t)``. Sums and
maxima: so after work 0 to i it is free at ``W_i + max(f, a_0 - W_0, ..., a_i - W_i)`` with the sum
``W_i`` of the work and ``a = max(h + w, t)``, which is a running maximum.
"""

from __future__ import annotations

import numpy as np

from kernbench.links.wires import Positions, Times

_MOST = 2**62


def in_order_of_arrival(servers: Positions, head: Times) -> Positions:
    """Return all places server by server, in order of arrival, ties as they are given."""
    late = head - head.min()
    span = int(late.max()) + 1
    if span * (int(servers.max()) + 1) < _MOST:
        return np.argsort(servers * span + late, kind="stable")
    return np.lexsort((head, servers))


def serve(
    servers: Positions, order: Positions, work: Times, head: Times, tail: Times, free: Times
) -> tuple[Times, Times]:
    """Return when the work of every place begins and when its server is free again.

    ``order`` lists the places server by server, and per server in its order. ``free`` says when
    each server is free, and is brought up to date.
    """
    ordered = servers[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(firsts, append=len(ordered))
    at = ordered[firsts]
    work = work[order]
    so_far = np.cumsum(work)
    so_far -= np.repeat(so_far[firsts] - work[firsts], lengths)
    arrives = head[order]
    slack = np.maximum(arrives + work, tail[order]) - so_far
    slack[firsts] = np.maximum(slack[firsts], free[at])
    ends = _running_maxima(slack, firsts, lengths) + so_far
    before = np.empty_like(ends)
    before[1:] = ends[:-1]
    before[firsts] = free[at]
    free[at] = ends[firsts + lengths - 1]
    begin, end = np.empty_like(ends), np.empty_like(ends)
    begin[order] = np.maximum(arrives, before)
    end[order] = ends
    return begin, end


def _running_maxima(values: Times, firsts: Positions, lengths: Positions) -> Times:
    """Return the running maximum of every piece of ``values``."""
    least = int(values.min())
    span = int(values.max()) - least + 1
    if span * len(firsts) < _MOST:
        # Every piece lies above all pieces before it.
        lift = np.repeat(np.arange(len(firsts)) * span, lengths) - least
        running_maxima: Times = np.maximum.accumulate(values + lift) - lift
        return running_maxima
    running_maxima = values.copy()
    for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
        piece = running_maxima[first : first + length]
        np.maximum.accumulate(piece, out=piece)
    return running_maxima
