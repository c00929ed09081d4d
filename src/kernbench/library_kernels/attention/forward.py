"""Attention as flash kernels do it: a tile of queries, and a loop over blocks of keys.

A tile keeps ``block_m`` rows of queries and goes over its keys ``block_n`` at a time: a product for
the scores, their softmax, a product with the values. Queries of the heads that share keys can be
packed into one tile (GQA); few tiles share the keys of one among several programs (split KV), whose
partial results a second kernel combines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernbench.library_kernels.attention.splits import (
    Splits,
    TileCounts,
    count_tiles,
    num_splits,
)
from kernbench.library_kernels.streams import stream
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip, merged

_SOFTMAX_SIMPLE = 5
"""Per score: scale, maximum, subtract, sum, convert."""
_TRANSPOSE_SIMPLE = 12
"""Per value of 8 bits: loads, permutations and stores that put those of several keys together."""
_FLASH_HEAD_DIMS = (64, 96, 128, 192, 256)
"""What flash kernels are compiled for: others are padded to the next."""
_PARTIAL_BYTES = 4
"""Results that are combined later are float32."""


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
    """The size of values and results; ``head_dim`` when missing."""
    causal: bool = False
    """Whether a query sees the keys up to its own place, counted from the end."""
    window: int = 0
    """How many keys before its own a query sees; 0 for all."""
    dtype: str = "bfloat16"
    """The dtype of queries, and of the products."""
    q_bytes: int = 2
    """Bytes per element of queries and results."""
    kv_bytes: int = 2
    """Bytes per element of keys and values."""

    @property
    def group(self) -> int:
        """Heads of queries that share keys."""
        return max(self.heads // max(self.kv_heads, 1), 1)

    @property
    def values(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def seen_keys(self) -> int:
        """Keys of a sequence that some query sees."""
        return min(self.kv_len, self.window + self.q_len) if self.window else self.kv_len

    @property
    def is_single_of_group(self) -> bool:
        """Whether a single query of each head of a group sees all keys."""
        return self.q_len == 1 and self.group > 1 and not self.window

    @property
    def one_sided(self) -> bool:
        """Whether queries do not see the keys after their own."""
        return self.causal or self.window > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashKernel:
    """The structure of one implementation."""

    name: str
    """The name of its constants."""
    block_m: int
    block_n: int
    resident: int = 1
    resident_of_128: bool = False
    """Whether ``resident`` is of head size 128, and shrinks or grows with others."""
    pipelined: bool = False
    """Whether loads run ahead, so that their latency hides behind the arithmetic of a block."""
    ping_pong: bool = False
    """Whether two groups of warps take turns: one multiplies during the softmax of the other."""
    loads_seen_keys: bool = False
    """Whether a block is loaded only as far as its keys are seen; else whole."""
    transposes_values: bool = False
    """Whether it puts values of 8 bits in the order of the matrix engine, which few rows do not
    hide."""
    packs_groups: bool = False
    """Whether rows of the heads that share keys fill a tile together."""
    least_block_m: int = 0
    """The tile of few rows: the smallest of its doubles that takes them all; 0 for one size."""
    block_n_of_128: bool = False
    """Whether ``block_n`` is of head size 128, and shrinks or grows with others."""
    blocks: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    """Rows and keys of head sizes (padded) that have others, where queries see ``all`` keys or a
    ``window``, and else ``any``."""
    padding: str = "none"
    """The padding of head sizes: ``none``, ``flash`` (64, 96, 128, 192, 256), ``16``, or ``power``
    of two."""
    skips_window: bool = True
    """Whether it leaves out keys that lie before the windows of all queries of a tile."""
    splits: Splits = Splits.NONE
    split_slots: int = 1
    """Programs of a PE that the choice of splits counts on."""
    longest_first: bool = True
    """Whether the tiles with most keys start first."""
    overlap: float = math.inf
    """How well tiles, cache and HBM work beside each other, as in ``LibraryKernel``."""

    def head_padded(self, size: int) -> int:
        """Return the head size that the products take."""
        if self.padding == "flash":
            return next((dim for dim in _FLASH_HEAD_DIMS if dim >= size), size)
        if self.padding == "16":
            return -(-size // 16) * 16
        return 1 << (size - 1).bit_length() if self.padding == "power" else size

    def block_of(self, problem: AttentionProblem, rows: int) -> tuple[int, int]:
        """Return the rows and keys of a block, of which a sequence has ``rows`` for a tile."""
        seen = "window" if problem.window else "any" if problem.causal else "all"
        sizes = {**self.blocks.get("any", {}), **self.blocks.get(seen, {})}
        own = self.rows_of_tile(rows), self.keys_of_block(problem.head_dim)
        m, n = sizes.get(self.head_padded(problem.head_dim), own)
        return m, n

    def rows_of_tile(self, rows: int) -> int:
        """Return ``block_m``, less where there are few rows."""
        if not self.least_block_m:
            return self.block_m
        least_block_m = self.least_block_m
        while least_block_m < min(self.block_m, rows):
            least_block_m *= 2
        return least_block_m

    def resident_with(self, head_dim: int) -> int:
        """Return ``resident`` for a head size."""
        if not self.resident_of_128:
            return self.resident
        return max(1, self.resident * 128 // head_dim)

    def keys_of_block(self, head_dim: int) -> int:
        """Return ``block_n`` for a head size."""
        if not self.block_n_of_128:
            return self.block_n
        return max(16, self.block_n * 128 // head_dim // 16 * 16)


def flash_launches(
    problem: AttentionProblem, kernel: FlashKernel, num_pes: int
) -> tuple[LibraryKernel, ...]:
    """Return what a call launches, one after another; replays of it are warm."""
    return ragged_launches((problem,), kernel, num_pes)


def ragged_launches(
    problems: Sequence[AttentionProblem], kernel: FlashKernel, num_pes: int
) -> tuple[LibraryKernel, ...]:
    """Return what one call on sequences of several lengths launches.

    Each problem is the sequences of one pair of lengths; heads and dtypes are the same in all.
    Splits are chosen by the tiles of all sequences, and are alike in all but by a rule that says
    otherwise.
    """
    longest = max(problems, key=lambda problem: (problem.q_len, problem.kv_len))
    single = kernel.splits is Splits.SINGLE_QUERY and longest.is_single_of_group
    packed = longest.group if kernel.packs_groups or single else 1
    block = kernel.block_of(longest, longest.q_len * packed)
    sequences = longest.heads if packed == 1 else longest.kv_heads
    tiles = [
        count_tiles(problem, block, packed, kernel.skips_window).times(problem.batch * sequences)
        for problem in problems
    ]
    counts = Counter[int]()
    for tile in tiles:
        counts.update(tile.counts)
    chosen = num_splits(
        kernel.splits if single or kernel.splits is not Splits.SINGLE_QUERY else Splits.NONE,
        counts,
        num_pes,
        kernel.split_slots,
        longest.kv_heads * -(-longest.q_len * longest.group // kernel.block_m),
        longest.kv_len,
    )
    splits = [chosen.of(max(tile.counts)) for tile in tiles]
    mains = [
        _main(
            problem,
            kernel,
            block,
            min(block[0], problem.q_len * packed),
            counted,
            parts,
            chosen.combined,
        )
        for problem, counted, parts in zip(problems, tiles, splits, strict=True)
    ]
    launches = [merged(mains)]
    sizes = [problem.batch * problem.q_len * problem.heads * problem.values for problem in problems]
    results = sum(sizes)
    if chosen.combined:
        partial = sum(parts * size for parts, size in zip(splits, sizes, strict=True))
        read = float(_PARTIAL_BYTES * partial)
        launches.append(stream("flash_combine", read, 2.0 * results, trips=max(splits)))
    if single and longest.kv_heads > 1 and sum(problem.batch for problem in problems) > 1:
        # Queries of a group are put beside each other before, and their results back after.
        copy = stream("flash_copy", 2.0 * results, 2.0 * results)
        launches = [copy, *launches, copy]
    return tuple(launches)


def _main(
    problem: AttentionProblem,
    kernel: FlashKernel,
    block: tuple[int, int],
    rows: int,
    counted: TileCounts,
    splits: int,
    combined: bool,
) -> LibraryKernel:
    m, n = block
    head = kernel.head_padded(problem.head_dim) + kernel.head_padded(problem.values)
    size = problem.head_dim + problem.values
    simple = float(_SOFTMAX_SIMPLE * m * n)
    if problem.kv_bytes < problem.q_bytes:
        simple += n * size  # keys and values are converted
    if kernel.transposes_values:
        simple += _TRANSPOSE_SIMPLE * n * problem.values
    loaded = min(n, counted.keys / max(counted.blocks, 1)) if kernel.loads_seen_keys else n
    trip = Trip(
        flops=2.0 * m * n * head,
        dtype=problem.dtype,
        transcendental=m * n,
        simple=simple,
        loaded_bytes=float(loaded * size * problem.kv_bytes),
        pipelined=kernel.pipelined,
        ping_pong=kernel.ping_pong,
    )
    stored = m * problem.values * (_PARTIAL_BYTES if combined else 2)
    tiles = tuple(
        Tiles(
            count=count * splits,
            trips=-(-trips // splits),
            trip=trip,
            stored_bytes=float(stored),
            rows=rows,
        )
        for trips, count in sorted(counted.counts.items(), reverse=True)
    )
    queries = problem.batch * problem.q_len * problem.heads
    keys = problem.seen_keys if kernel.skips_window else problem.kv_len
    keys *= problem.batch * problem.kv_heads
    written = _PARTIAL_BYTES * splits if combined else problem.q_bytes
    return LibraryKernel(
        name=kernel.name,
        tiles=tiles,
        resident=kernel.resident_with(problem.head_dim),
        hbm_read_bytes=float(
            queries * problem.head_dim * problem.q_bytes + keys * size * problem.kv_bytes
        ),
        hbm_written_bytes=float(queries * problem.values * written),
        warm=True,
        longest_first=kernel.longest_first,
        overlap=kernel.overlap,
    )
