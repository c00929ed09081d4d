"""Recursive halving and doubling: ``log2 n`` steps in which ranks exchange halves.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", International Journal of High Performance Computing Applications 19(1), 2005.
"""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, shared_index
from kernbench.collectives.schedule import Index, Step


def all_reduce(asked: Request) -> Plan:
    """Return a halving reduce-scatter and a doubling all-gather.

    Ranks beyond the largest power of two give their tensor to one that is not, and get the result.
    """
    n = asked.num_ranks
    core = 1 << (n.bit_length() - 1)
    far, near = shared_index(np.arange(core, n)), shared_index(np.arange(n - core))
    whole = shared_index(np.zeros(n - core))
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    if n > core:
        before = (Step(far, near, whole, reduce=True, span=core),)
        after = (Step(near, far, whole, reduce=False, span=core),)
    steps = before + _halving(core) + _doubling(core) + after
    return even_bounds(asked.num_elements, core), steps


def reduce_scatter(asked: Request) -> Plan:
    """Return ``log2 n`` steps; the number of ranks is a power of two."""
    return even_bounds(asked.num_elements, asked.num_ranks), _halving(asked.num_ranks)


def all_gather(asked: Request) -> Plan:
    """Return ``log2 n`` steps; the number of ranks is a power of two."""
    return even_bounds(asked.num_elements, asked.num_ranks), _doubling(asked.num_ranks)


def _halving(num_ranks: int) -> tuple[Step, ...]:
    """Return steps in which a rank sends the half that its partner keeps."""
    src = shared_index(np.arange(num_ranks))
    steps = []
    half = num_ranks // 2
    while half:
        partner = shared_index(src ^ half)
        steps.append(Step(src, partner, _block(partner, half), reduce=True, span=half))
        half //= 2
    return tuple(steps)


def _doubling(num_ranks: int) -> tuple[Step, ...]:
    """Return steps in which partners exchange all that they have."""
    src = shared_index(np.arange(num_ranks))
    steps = []
    held = 1
    while held < num_ranks:
        steps.append(Step(src, shared_index(src ^ held), _block(src, held), False, span=held))
        held *= 2
    return tuple(steps)


def _block(ranks: Index, size: int) -> Index:
    return shared_index(ranks // size * size)
