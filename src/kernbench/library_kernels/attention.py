"""Attention as flash kernels do it: a tile of queries, and a loop over blocks of keys.

A tile keeps ``block_m`` rows of queries and goes over its keys ``block_n`` at a time: a product for
the scores, their softmax, a product with the values. Queries of the heads that share keys can be
packed into one tile (GQA); few tiles share the keys of one among several programs (split KV), whose
results a second kernel adds up.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

_SOFTMAX_SIMPLE = 5
"""Per score: scale, maximum, subtract, sum, convert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProblem:
    """Scaled dot-product attention of one device's heads."""

    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    """Of values and results; ``head_dim`` when missing."""
    causal: bool = False
    """Whether a query sees the keys up to its own place, counted from the end."""
    window: int = 0
    """How many keys before its own a query sees; 0 for all."""
    dtype: str = "bfloat16"
    kv_bytes: int = 2
    """Of an element of keys and values."""

    @property
    def group(self) -> int:
        """Heads of queries that share keys."""
        return max(self.heads // max(self.kv_heads, 1), 1)

    @property
    def values(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashKernel:
    """The structure of one implementation."""

    name: str
    block_m: int
    block_n: int
    resident: int = 1
    packs_groups: bool = False
    """Whether rows of the heads that share keys fill a tile together."""


def flash_forward(problem: AttentionProblem, kernel: FlashKernel) -> LibraryKernel:
    """Return the launch of a forward pass."""
    packed = problem.group if kernel.packs_groups else 1
    rows = problem.q_len * packed
    per_head = math.ceil(rows / kernel.block_m)
    sequences = problem.batch * problem.heads // packed
    counts = Counter[int]()
    for index in range(per_head):
        last_query = min((index + 1) * kernel.block_m, rows) // packed
        counts[_blocks(problem, kernel, last_query)] += sequences
    m, n = kernel.block_m, kernel.block_n
    trip = Trip(
        flops=2.0 * m * n * (problem.head_dim + problem.values),
        dtype=problem.dtype,
        transcendental=m * n,
        simple=_SOFTMAX_SIMPLE * m * n,
        loaded_bytes=n * (problem.head_dim + problem.values) * problem.kv_bytes,
    )
    tiles = tuple(
        Tiles(count=count, trips=trips, trip=trip, stored_bytes=2.0 * m * problem.values)
        for trips, count in sorted(counts.items(), reverse=True)
    )
    tokens = problem.batch * problem.q_len
    keys = problem.batch * problem.kv_heads * problem.kv_len
    return LibraryKernel(
        name=kernel.name,
        tiles=tiles,
        resident=kernel.resident,
        hbm_read_bytes=2.0 * tokens * problem.heads * problem.head_dim
        + keys * (problem.head_dim + problem.values) * problem.kv_bytes,
        hbm_written_bytes=2.0 * tokens * problem.heads * problem.values,
    )


def _blocks(problem: AttentionProblem, kernel: FlashKernel, last_query: int) -> int:
    """Return how many blocks of keys the tile that ends before a query goes over."""
    end = problem.kv_len
    if problem.causal:
        end = min(end, last_query + problem.kv_len - problem.q_len)
    first = 0
    if problem.window:
        first = max(
            0, last_query - kernel.block_m + problem.kv_len - problem.q_len - problem.window
        )
    return max(math.ceil(end / kernel.block_n) - first // kernel.block_n, 1)
