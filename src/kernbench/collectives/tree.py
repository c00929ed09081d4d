"""Binomial trees: ``ceil(log2 n)`` steps from or to a root, for latency-bound messages."""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, in_one_round, shared_index
from kernbench.collectives.schedule import Index, Step


def broadcast(asked: Request) -> Plan:
    """Return a tree in which every rank that has the tensor sends it on in every step."""
    steps = tuple(
        Step(holders, others, _whole(holders), reduce=False)
        for holders, others in _levels(asked.num_ranks, asked.root)
    )
    return even_bounds(asked.num_elements, 1), steps


def all_reduce(asked: Request) -> Plan:
    """Return a tree up to rank 0, which reduces the whole tensor, and the same tree down again."""
    levels = _levels(asked.num_ranks, root=0)
    up = tuple(Step(far, near, _whole(far), reduce=True) for near, far in reversed(levels))
    down = tuple(Step(near, far, _whole(near), reduce=False) for near, far in levels)
    return even_bounds(asked.num_elements, 1), up + down


def reduce(asked: Request) -> Plan:
    """Return a tree up to the root, which reduces the whole tensor."""
    levels = _levels(asked.num_ranks, asked.root)
    up = tuple(Step(far, near, _whole(far), reduce=True) for near, far in reversed(levels))
    return even_bounds(asked.num_elements, 1), up


def scatter(asked: Request) -> Plan:
    """Return a tree from the root: in each round a holder of parts forwards half of them."""
    steps: list[Step] = []
    for near, far in _levels(asked.num_ranks, asked.root):
        steps += in_one_round(_parts(asked, near, far))
    return even_bounds(asked.num_elements, asked.num_ranks), tuple(steps)


def gather(asked: Request) -> Plan:
    """Return the scatter backwards."""
    steps: list[Step] = []
    for near, far in reversed(_levels(asked.num_ranks, asked.root)):
        steps += in_one_round(_parts(asked, far, near, of_sender=True))
    return even_bounds(asked.num_elements, asked.num_ranks), tuple(steps)


def _parts(asked: Request, src: Index, dst: Index, of_sender: bool = False) -> list[Step]:
    """Return a step for each part behind the far ends of one level, far ends first."""
    n, root = asked.num_ranks, asked.root
    place = ((src if of_sender else dst) - root) % n
    # At the level that reaches from h to h + R, behind h + R are h + R + 2R, h + R + 4R, ...
    stride = 2 * int(abs(((dst - root) % n) - ((src - root) % n))[0])
    steps = []
    while (place < n).any():
        here = place < n
        chunk = shared_index((place[here] + root) % n)
        steps.append(Step(shared_index(src[here]), shared_index(dst[here]), chunk, reduce=False))
        place = place + stride
    return steps


def _levels(num_ranks: int, root: int) -> list[tuple[Index, Index]]:
    """Return (ranks that have the tensor, ranks that they reach) per step of a broadcast."""
    levels = []
    reach = 1
    while reach < num_ranks:
        holders = np.arange(min(reach, num_ranks - reach))
        near, far = (holders + root) % num_ranks, (holders + reach + root) % num_ranks
        levels.append((shared_index(near), shared_index(far)))
        reach *= 2
    return levels


def _whole(ranks: Index) -> Index:
    return shared_index(np.zeros(len(ranks)))
