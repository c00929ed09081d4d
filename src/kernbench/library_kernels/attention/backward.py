"""The backward pass of flash attention: a tile of keys, and a loop over blocks of queries.

A tile keeps ``block_n`` keys and values and their gradients, and goes over the queries that see
them: the scores again, the gradients of probabilities, keys, values and queries, of which the last
is added up in float32 by atomic operations. A launch before it multiplies results and their
gradients row by row and clears that sum, one after it converts the sum.
"""

from __future__ import annotations

from collections import Counter

from kernbench.library_kernels.attention.forward import AttentionProblem, FlashKernel
from kernbench.library_kernels.streams import stream
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

_SIMPLE = 8
"""Per score: scale, subtract, the gradient's difference and product, two conversions, masks."""


def flash_backward_launches(
    problem: AttentionProblem, kernel: FlashKernel
) -> tuple[LibraryKernel, ...]:
    """Return what a backward pass launches; keys of a group are those of its heads, added up."""
    queries = problem.batch * problem.q_len * problem.heads
    keys = problem.batch * problem.kv_len * problem.heads
    head, values = problem.head_dim, problem.values
    width = float(problem.q_bytes)
    prepare = stream("flash_prepare", 2 * width * queries * values, 4.0 * queries * (head + 1))
    convert = stream("flash_convert", 4.0 * queries * head, width * queries * head)
    launches = [prepare, _main(problem, kernel, queries, keys), convert]
    if problem.group > 1:
        gathered = width * keys * (head + values)
        launches.append(stream("flash_convert", gathered, gathered / problem.group))
    return tuple(launches)


def _main(problem: AttentionProblem, kernel: FlashKernel, queries: int, keys: int) -> LibraryKernel:
    m, n = kernel.block_m, kernel.keys_of_block(problem.head_dim)
    head, values = kernel.head_padded(problem.head_dim), kernel.head_padded(problem.values)
    counts = Counter[int]()
    window = problem.window if kernel.skips_window else 0
    for first in range(0, problem.kv_len, n):
        seen = _blocks(problem, window, m, (first, min(first + n, problem.kv_len)))
        counts[seen] += problem.batch * problem.heads
    read = m * (problem.head_dim + problem.values) * problem.q_bytes
    trip = Trip(
        flops=2.0 * m * n * (3 * head + 2 * values),
        dtype=problem.dtype,
        transcendental=m * n,
        simple=float(_SIMPLE * m * n),
        loaded_bytes=float(read + 4 * m * problem.head_dim),
    )
    size = problem.head_dim + problem.values
    stored = float(2 * n * size * problem.kv_bytes)
    return LibraryKernel(
        name=kernel.name,
        tiles=tuple(
            Tiles(count=count, trips=trips, trip=trip, stored_bytes=stored)
            for trips, count in sorted(counts.items(), reverse=True)
        ),
        resident=kernel.resident,
        hbm_read_bytes=float(
            queries * (size * problem.q_bytes + 4 * problem.head_dim)
            + keys // problem.group * size * problem.kv_bytes
        ),
        hbm_written_bytes=float(keys * size * problem.kv_bytes + 4 * queries * problem.head_dim),
        warm=True,
        longest_first=kernel.longest_first,
    )


def _blocks(problem: AttentionProblem, window: int, m: int, keys: tuple[int, int]) -> int:
    """Return how many blocks of queries a tile goes over: those that see some key of it."""
    earlier = problem.kv_len - problem.q_len
    first = max(0, keys[0] - earlier) if problem.one_sided else 0
    end = problem.q_len
    if window:
        end = min(end, max(0, keys[1] - earlier + window))
    return max(-(-end // m) - first // m, 1)
