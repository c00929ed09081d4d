"""Direct algorithms: every rank sends to every other rank itself, one after the other.

The same bytes as a ring, and fewer hops where SIPs are fully connected or behind a switch.
"""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, shared_index
from kernbench.collectives.schedule import Index, Step


def all_reduce(asked: Request) -> Plan:
    """Return two shots: each rank reduces its own chunk of all ranks, then hands it to all."""
    bounds, reduce_steps = reduce_scatter(asked)
    return bounds, reduce_steps + all_gather(asked)[1]


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
