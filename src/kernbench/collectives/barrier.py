"""Barriers: empty messages, so that no rank leaves before every rank has arrived."""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, shared_index
from kernbench.collectives.schedule import Step


def dissemination(asked: Request) -> Plan:
    """Return ``ceil(log2 n)`` rounds: in round k rank r signals rank ``r + 2**k``.

    Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
    International Journal of Parallel Programming 17(1), 1988.
    """
    ranks = np.arange(asked.num_ranks)
    src, empty = shared_index(ranks), shared_index(np.zeros(asked.num_ranks))
    steps = []
    shift = 1
    while shift < asked.num_ranks:
        dst = shared_index((ranks + shift) % asked.num_ranks)
        steps.append(Step(src, dst, empty, reduce=False))
        shift *= 2
    return even_bounds(0, 1), tuple(steps)
