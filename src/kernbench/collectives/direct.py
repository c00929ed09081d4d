"""Direct algorithms: every rank sends to every other rank itself.

The same bytes as a ring, and fewer hops where SIPs are fully connected or behind a switch. Where a
shot is one round, a rank serves all its peers at once, over as many links as lead to them.
"""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, in_one_round, shared_index
from kernbench.collectives.schedule import Index, Step


def all_reduce(asked: Request) -> Plan:
    """Return two phases, one peer after the other: reduce the own chunk, send it to all ranks."""
    bounds, reduce_steps = reduce_scatter(asked)
    return bounds, reduce_steps + all_gather(asked)[1]


def two_shot_all_reduce(asked: Request) -> Plan:
    """Return two rounds: each rank reduces its own chunk of all ranks, then sends it to all."""
    bounds, reduce_steps = one_shot_reduce_scatter(asked)
    return bounds, reduce_steps + one_shot_all_gather(asked)[1]


def one_shot_all_reduce(asked: Request) -> Plan:
    """Return one round: every rank sends its tensor to all others, and each reduces locally.

    The slots are added in the order of the ranks, so that all have the same bits.
    """
    n = asked.num_ranks
    bounds = np.arange(n + 1, dtype=np.int64) * asked.num_elements
    bounds.setflags(write=False)
    return bounds, one_shot_all_gather(asked)[1]


def one_shot_reduce_scatter(asked: Request) -> Plan:
    """Return :func:`reduce_scatter` as one round."""
    bounds, steps = reduce_scatter(asked)
    return bounds, in_one_round(steps)


def one_shot_all_gather(asked: Request) -> Plan:
    """Return :func:`all_gather` as one round."""
    bounds, steps = all_gather(asked)
    return bounds, in_one_round(steps)


def reduce_scatter(asked: Request) -> Plan:
    """Return ``n - 1`` steps: in step s rank r sends rank ``r + s + 1`` the chunk of that rank."""
    src, peers = _peers(asked.num_ranks)
    steps = tuple(Step(src, dst, chunk=dst, reduce=True) for dst in peers)
    return even_bounds(asked.num_elements, asked.num_ranks), steps


def all_gather(asked: Request) -> Plan:
    """Return ``n - 1`` steps: in step s rank r sends rank ``r + s + 1`` its own chunk."""
    src, peers = _peers(asked.num_ranks)
    steps = tuple(Step(src, dst, chunk=src, reduce=False) for dst in peers)
    return even_bounds(asked.num_elements, asked.num_ranks), steps


def send_recv(asked: Request) -> Plan:
    """Return one transfer of the whole tensor, from the root to the other of two ranks."""
    ends = shared_index([asked.root]), shared_index([1 - asked.root])
    step = Step(*ends, chunk=shared_index([0]), reduce=False)
    return even_bounds(asked.num_elements, 1), (step,)


def _peers(num_ranks: int) -> tuple[Index, list[Index]]:
    """Return all ranks, and per step the rank that each of them sends to."""
    src = shared_index(np.arange(num_ranks))
    twice = shared_index(np.concatenate([src, src]))
    return src, [twice[shift : shift + num_ranks] for shift in range(1, num_ranks)]
