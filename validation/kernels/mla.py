"""Multi-head latent attention: decode on the latent vectors, and the products around it.

While it decodes, a head's query is multiplied by the head's part of the up-projection, so that all
heads share one key per token: the latent vector and its rotary part. The value is the latent vector
itself, so a block of keys is loaded once for both products. A tile holds the queries of many heads;
the keys of a sequence are split among programs where the tiles alone are too few, and a second
kernel adds up their results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.library_kernels import AttentionProblem, LibraryKernel, Tiles, Trip, stream

_SOFTMAX_SIMPLE = 5
"""Per score: scale, maximum, subtract, sum, convert."""
_TILES = ((128, 128), (64, 128), (64, 64), (32, 64), (32, 32))
"""The tiles of a product, from the largest: fewer than one for each PE and a smaller one is
taken."""
_HEIGHTS = (16, 32, 64)
"""The heights of tiles for products of few rows."""
_COMBINING = 8
"""Queries whose parts a PE adds up at a time."""
_PARTIAL_BYTES = 4
"""Bytes per element of a partial result: float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentKernel:
    """The structure of one implementation of decode on latent vectors."""

    name: str
    block_m: int = 64
    """Rows of a tile: heads times queries of one sequence."""
    block_n: int = 64
    resident: int = 1
    waves: float = 1.0
    """Keys are split until the tiles fill the device so many times; 0 for no split."""
    most_splits: int = 1 << 30
    least_blocks: int = 1
    """The fewest blocks of keys that a program goes over."""
    persistent: bool = False
    """Whether programs share all blocks of all sequences evenly, rather than whole tiles."""
    combine: str = ""
    """The name of the kernel that adds up the parts; empty where the last program of a tile does
    it."""
    cache_pass: str = ""
    """The name of a kernel that converts the whole cache to the dtype of the queries first."""
    padded: bool = True
    """Whether the matrix engine works on whole tiles, however few rows they have."""


def latent_decode(
    problem: AttentionProblem, kernel: LatentKernel, num_pes: int
) -> tuple[LibraryKernel, ...]:
    """Return the launches of decode for one step of all sequences."""
    rows = problem.q_len * problem.group
    tiles_m = math.ceil(rows / kernel.block_m)
    sequences = problem.batch * problem.kv_heads * tiles_m
    blocks = max(math.ceil(problem.kv_len / kernel.block_n), 1)
    splits = _splits(kernel, sequences, blocks, num_pes)
    trips: float = math.ceil(blocks / splits)
    count = sequences * splits
    slots = num_pes * kernel.resident
    if kernel.persistent and count > slots:
        trips, count = trips * count / slots, slots
    m = kernel.block_m if kernel.padded else min(rows, kernel.block_m)
    n = min(kernel.block_n, problem.kv_len) if problem.kv_len else 1
    row_bytes = problem.head_dim * problem.kv_bytes
    trip = Trip(
        flops=2.0 * m * kernel.block_n * (problem.head_dim + problem.values),
        dtype=problem.dtype,
        transcendental=m * kernel.block_n,
        simple=_SOFTMAX_SIMPLE * m * kernel.block_n,
        loaded_bytes=n * row_bytes,
    )
    partial = _PARTIAL_BYTES if splits > 1 else 2
    queries = problem.batch * problem.kv_heads * rows
    keys = problem.batch * problem.kv_heads * problem.kv_len * row_bytes
    written = queries * splits * problem.values * partial
    read = keys + 2.0 * queries * problem.head_dim
    launches = [
        LibraryKernel(
            name=kernel.name,
            tiles=(
                Tiles(
                    count=count,
                    trips=trips,
                    trip=trip,
                    stored_bytes=m * problem.values * partial + 2.0 * m * problem.head_dim,
                ),
            ),
            resident=kernel.resident,
            hbm_read_bytes=read,
            hbm_written_bytes=written,
            warm=True,
        )
    ]
    if kernel.cache_pass:
        tokens = problem.batch * problem.kv_heads * problem.kv_len * problem.head_dim
        launches.insert(0, stream(kernel.cache_pass, tokens, 2.0 * tokens))
    if kernel.combine:
        launches.append(_combine(kernel.combine, queries, splits, problem.values))
    return tuple(launches)


def _combine(name: str, queries: int, splits: int, values: int) -> LibraryKernel:
    """Return the launch that adds up the parts of every query's result, one after another."""
    part = float(_PARTIAL_BYTES * values)
    read, written = queries * splits * part, 2.0 * queries * values
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=queries,
                trips=splits,
                trip=Trip(simple=2.0 * values, loaded_bytes=part),
                stored_bytes=2.0 * values,
            ),
        ),
        resident=_COMBINING,
        hbm_read_bytes=read,
        hbm_written_bytes=written,
        warm=True,
    )


def _splits(kernel: LatentKernel, sequences: int, blocks: int, num_pes: int) -> int:
    """Return among how many programs the keys of a sequence are split."""
    if not kernel.waves:
        return 1
    wanted = kernel.waves * num_pes * kernel.resident / sequences
    most = min(kernel.most_splits, max(blocks // kernel.least_blocks, 1))
    return max(min(math.floor(wanted), most), 1)


def batched_product(
    name: str, batch: int, m: int, n: int, k: int, num_pes: int, dtype: str = "bfloat16"
) -> LibraryKernel:
    """Return a launch of ``batch`` products of [m, k] by [k, n], with results of two bytes."""
    element = 1 if dtype.startswith("float8") else 2
    block_m, block_n, block_k = (*_tile(batch, m, n, num_pes), 64)
    tiles = batch * math.ceil(m / block_m) * math.ceil(n / block_n)
    read = batch * (m + n) * k * element
    written = 2.0 * batch * m * n
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=tiles,
                trips=k / block_k,
                trip=Trip(
                    flops=2.0 * block_m * block_n * block_k,
                    dtype=dtype,
                    loaded_bytes=(min(block_m, m) + block_n) * block_k * element,
                ),
                stored_bytes=2.0 * min(block_m, m) * block_n,
            ),
        ),
        resident=2,
        hbm_read_bytes=read,
        hbm_written_bytes=written,
        warm=True,
    )


def _tile(batch: int, m: int, n: int, num_pes: int) -> tuple[int, int]:
    """Return rows and columns of a tile: the largest that still gives every PE one."""
    for block_m, block_n in _TILES:
        if batch * math.ceil(m / block_m) * math.ceil(n / block_n) >= num_pes:
            fitting = next((height for height in _HEIGHTS if m <= height), block_m)
            return min(block_m, fitting), block_n
    return min(_TILES[-1][0], next((height for height in _HEIGHTS if m <= height), 64)), _TILES[-1][
        1
    ]
