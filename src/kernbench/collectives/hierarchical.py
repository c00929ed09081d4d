"""Rings inside every node, and rings across nodes between the ranks at one position."""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, in_one_round, shared_index
from kernbench.collectives.schedule import Step


def all_reduce(asked: Request) -> Plan:
    """Return the reduce-scatter inside and across, and the all-gather back."""
    bounds, reduce_steps = reduce_scatter(asked)
    return bounds, reduce_steps + all_gather(asked)[1]


def reduce_scatter(asked: Request) -> Plan:
    """Return rings inside the nodes, after which place p has the parts of all p, then across."""
    steps = _inside(asked, first=-1, reduce=True) + _across(asked, first=-1, reduce=True)
    return even_bounds(asked.num_elements, asked.num_ranks), steps


def all_gather(asked: Request) -> Plan:
    """Return rings across the nodes, then inside."""
    steps = _across(asked, first=0, reduce=False) + _inside(asked, first=0, reduce=False)
    return even_bounds(asked.num_elements, asked.num_ranks), steps


def _inside(asked: Request, first: int, reduce: bool) -> tuple[Step, ...]:
    """Return ``L - 1`` rounds: place p forwards what places ``p + first - s`` of all nodes own."""
    size, num_nodes = asked.ranks_per_node, asked.num_ranks // asked.ranks_per_node
    node, place = np.divmod(np.arange(asked.num_ranks), size)
    src = shared_index(np.arange(asked.num_ranks))
    dst = shared_index(node * size + (place + 1) % size)
    steps: list[Step] = []
    for number in range(size - 1):
        of = (place + first - number) % size
        chunks = [shared_index(index * size + of) for index in range(num_nodes)]
        steps += in_one_round(Step(src, dst, chunk, reduce) for chunk in chunks)
    return tuple(steps)


def _across(asked: Request, first: int, reduce: bool) -> tuple[Step, ...]:
    """Return ``N - 1`` steps: node k forwards the part of its place in node ``k + first - s``."""
    size, num_nodes = asked.ranks_per_node, asked.num_ranks // asked.ranks_per_node
    node, place = np.divmod(np.arange(asked.num_ranks), size)
    src = shared_index(np.arange(asked.num_ranks))
    dst = shared_index((node + 1) % num_nodes * size + place)
    parts = [
        shared_index((node + first - number) % num_nodes * size + place)
        for number in range(num_nodes - 1)
    ]
    return tuple(Step(src, dst, chunk, reduce) for chunk in parts)
