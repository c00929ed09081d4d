"""Random numbers that depend on the seed, the rank and the call, and on nothing else."""

from __future__ import annotations

import numpy as np


def rank_generator(seed: int, rank: int, call: int) -> np.random.Generator:
    """Return the generator of one call of ``rand`` and the like: any order of ranks gives the same.

    >>> float(rank_generator(0, 1, 1).random()) == float(rank_generator(0, 1, 1).random())
    True
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((abs(seed), rank, call))))
