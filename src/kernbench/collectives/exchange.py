"""Algorithms in which each rank has a different part for every other one, or for the root."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, in_one_round, shared_index
from kernbench.collectives.schedule import Bounds, Step


def pairwise(asked: Request) -> Plan:
    """Return ``n - 1`` steps: in step s rank r sends rank ``r + s`` its part."""
    n = asked.num_ranks
    ranks = np.arange(n)
    src = shared_index(ranks)
    steps = []
    for shift in range(1, n):
        dst = shared_index((ranks + shift) % n)
        steps.append(Step(src, dst, shared_index(ranks * n + dst), reduce=False))
    return _pair_bounds(asked), tuple(steps)


def one_shot(asked: Request) -> Plan:
    """Return :func:`pairwise` as one round: every rank sends to all others at once."""
    bounds, steps = pairwise(asked)
    return bounds, in_one_round(steps)


def scattered(asked: Request) -> Plan:
    """Return all of :func:`pairwise` at once, the peers in an order that spreads them.

    Peers ahead and behind at the same distance go together, so that both directions of a ring are
    busy, and distances come bit-reversed, so that no link of a mesh has all of its work at the end.
    Half of the way round comes last, which is one peer only. Links serve them in that order.
    """
    bounds, steps = pairwise(asked)
    n = asked.num_ranks
    bits = n.bit_length()
    distances = sorted(
        range(1, n // 2 + 1), key=lambda number: (2 * number == n, f"{number:0{bits}b}"[::-1])
    )
    spread: list[Step] = []
    for distance in distances:
        both = [steps[item - 1] for item in dict.fromkeys((distance, n - distance))]
        first, *others = in_one_round(both)
        if spread:
            first = replace(first, concurrent=True, behind=True)
        spread += [first, *others]
    return bounds, tuple(spread)


def bruck(asked: Request) -> Plan:
    """Return ``ceil(log2 n)`` rounds: in round k parts move ``2**k`` if their distance has bit k.

    Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
    message-passing systems", IEEE TPDS 8(11), 1997.
    """
    n = asked.num_ranks
    owner = np.arange(n)
    steps: list[Step] = []
    hop = 1
    while hop < n:
        src = dst = None
        moves = []
        for distance in range(1, n):
            if distance & hop:
                src = shared_index((owner + (distance & (hop - 1))) % n)
                dst = shared_index((src + hop) % n)
                chunk = shared_index(owner * n + (owner + distance) % n)
                moves.append(Step(src, dst, chunk, reduce=False))
        steps += in_one_round(moves)
        hop *= 2
    return _pair_bounds(asked), tuple(steps)


def gather(asked: Request) -> Plan:
    """Return one round in which all send their part to the root."""
    n, root = asked.num_ranks, asked.root
    to = shared_index([root])
    others = [shared_index([(root + shift) % n]) for shift in range(1, n)]
    steps = [Step(other, to, other, reduce=False) for other in others]
    return even_bounds(asked.num_elements, n), in_one_round(steps)


def scatter(asked: Request) -> Plan:
    """Return one round in which the root sends all others their part."""
    bounds, steps = gather(asked)
    back = [Step(step.dst, step.src, step.chunk, reduce=False) for step in steps]
    return bounds, in_one_round(back)


def _pair_bounds(asked: Request) -> Bounds:
    """Return the bounds of the parts that rank s has for rank d, in the order ``s * n + d``."""
    n = asked.num_ranks
    counts = np.array(asked.counts, dtype=np.int64)
    if not asked.counts:
        counts = np.tile(np.diff(even_bounds(asked.num_elements, n)), n)
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    bounds.setflags(write=False)
    return bounds
