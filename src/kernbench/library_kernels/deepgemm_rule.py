"""Which tile DeepGEMM takes on Hopper: the one of least cycles by its own estimate.

Its estimate counts the bytes that caches and shared memory move, and how full the last wave is; it
knows no latency. Clusters of two load an operand once, but only from the second wave on. Without a
cluster the largest tiles do not fit the registers, which the estimate does not know either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from kernbench.library_kernels.tile_rules import ProductTile

_K = 128
_SHARED_BYTES = 232448
_CACHE_BYTES_PER_CLOCK = 8e6 / 1.3e3
_STAGES, _STAGES_OF_SMALL = 3, 4
_LARGE = 128 * 192
"""Results from which on three stages are enough, and accumulators fill the registers."""
_SPILLS = 14.0
"""Moves of each result per trip where they do: by hand, rows of tiles without a cluster."""
_OVERLAP = 5.0
"""How well its tiles, the cache and HBM work beside each other: rows of block-scaled products."""
_CLUSTERS = ((1, 1), (1, 2), (2, 1))


@lru_cache(maxsize=4096)
def deepgemm_tile(m: int, n: int, k: int, num_pes: int) -> ProductTile:
    """Return the tile that DeepGEMM takes for block-scaled fp8 of these sizes.

    Source of the estimate: DeepGEMM, csrc/jit_kernels/heuristics/sm90.hpp.
    """
    shapes = list(_blocks(m, k))
    numbers: list[tuple[int, int, tuple[int, int, int, int]]] = []
    for cluster in _CLUSTERS:
        for rows, cols in shapes:
            blocks = math.ceil(m / rows) * math.ceil(n / cols)
            waves = math.ceil(blocks / num_pes)
            if cluster == (1, 1) or waves > 1:
                cycles = _cycles(rows, cols, k, cluster, num_pes, blocks)
                # Of tiles with equal estimates the first is taken.
                estimate = cycles * waves * num_pes // blocks
                numbers.append((estimate, len(numbers), (rows, cols, *cluster)))
    _, _, (rows, cols, cluster_rows, cluster_cols) = min(numbers)
    spills = rows * cols >= _LARGE and cluster_rows * cluster_cols == 1
    return ProductTile(
        rows,
        cols,
        resident=1,
        cluster_rows=cluster_rows,
        cluster_columns=cluster_cols,
        overlap=_OVERLAP,
        moves_per_result=_SPILLS if spills else 0.0,
    )


def _blocks(m: int, k: int) -> Iterator[tuple[int, int]]:
    """Yield the rows and columns of the blocks that registers and shared memory allow."""
    heights = [64, 128, *([16] if m <= 16 else []), *([32] if m <= 32 else []), 256]
    for rows in heights:
        for cols in range(16, 193, 16):
            over = cols - _K
            uneven = over > 0 and cols % over and _K % over
            if uneven or (rows > _K and cols > _K):
                continue
            least = _STAGES if rows * cols >= _LARGE else _STAGES_OF_SMALL
            if _stages(rows, cols, k) >= least:
                yield rows, cols


def _stages(rows: int, cols: int, k: int) -> int:
    scales = math.ceil(k / _K) * 4 * (1 if _K % cols == 0 else 2)
    results = math.ceil(rows * cols * 2 / 1024) * 1024
    a_stage = (rows + cols) * _K + math.ceil(rows * 4 / 128) * 128
    return (_SHARED_BYTES - results - 256 - scales) // a_stage


def _cycles(
    rows: int, cols: int, k: int, cluster: tuple[int, int], num_pes: int, blocks: int
) -> int:
    stored = rows * cols * 2
    from_cache = k * (rows // cluster[1] + cols // cluster[0]) + stored
    in_shared = k * (rows + cols) + k * (max(64, rows) + cols) + 2 * stored
    cache = int(min(64.0 * num_pes, _CACHE_BYTES_PER_CLOCK))
    return max(from_cache * blocks // cache, in_shared * blocks // (128 * num_pes))
