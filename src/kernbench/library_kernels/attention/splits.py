"""Which tiles a flash kernel has, and how many programs share the keys of each (split KV)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kernbench.library_kernels.attention.forward import AttentionProblem

_FULL = 0.8
"""Kernels do not split when tiles fill this share of the PEs."""
_GOOD = 0.85
"""The part of the best share of busy PEs that is good enough for fewer splits."""
_MOST = 128
_FEW_BLOCKS = 4
_SEGMENTS = 16
_FEW_TILES = 128
_MOST_GROWN = 8
_SHORT_KEYS = 64
_MARGIN = 1.1
_HISTORY = 128
_ROUNDS = 8


class Splits(StrEnum):
    """Rules for the number of splits."""

    NONE = "none"
    EFFICIENT = "efficient"
    """The fewest whose rounds of PEs are nearly as full as those of the best."""
    SINGLE_QUERY = "single_query"
    """As ``efficient`` for two programs on a PE, where a single query of a group sees all keys."""
    DYNAMIC = "dynamic"
    """Whether to split as if there were one sequence; how often, by a sequence's own blocks and
    those of all."""
    FILL = "fill"
    """As many parts as there are free PEs for."""
    FILL_UP = "fill_up"
    """The fewest that leave no PE free."""
    FILL_PAIRS = "fill_pairs"
    """As many parts as there are free PEs for, two blocks of keys each."""
    SEGMENTS = "segments"
    """Sixteen where there are few tiles, none else, whatever the machine."""
    GROWING = "growing"
    """The fewest that leave no PE free, more with each double of keys, eight at most; the kernel
    that leaves partial results always runs."""
    HISTORY = "history"
    """One for each 128 keys, fewer where these are many, and no more than fill eight rounds of
    PEs."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice."""

    splits: int
    combined: bool
    """Whether the kernel that leaves partial results runs, be it with one split."""
    blocks_of_one: int = 0
    """Where a sequence has no more splits than its own blocks need: how many one split takes."""

    def of(self, blocks: int) -> int:
        """Return the splits of a sequence whose tiles go over at most so many blocks."""
        if not self.blocks_of_one:
            return self.splits
        return max(1, min(self.splits, math.ceil(blocks / self.blocks_of_one)))


@dataclass(frozen=True, slots=True)
class TileCounts:
    """The tiles of one group of rows."""

    counts: Mapping[int, int]
    """How many tiles go over how many blocks of keys."""
    keys: int
    """From the first key that a tile sees to its last, over all tiles."""

    @property
    def blocks(self) -> int:
        """Blocks of keys of all tiles."""
        return sum(blocks * count for blocks, count in self.counts.items())

    def times(self, sequences: int) -> TileCounts:
        """Return the tiles of so many groups of rows."""
        counts = {blocks: count * sequences for blocks, count in self.counts.items()}
        return TileCounts(counts, self.keys * sequences)


def count_tiles(
    problem: AttentionProblem,
    block: tuple[int, int],
    packed: int,
    skips_window: bool,
) -> TileCounts:
    """Return the tiles of (rows, keys) that cover the queries of ``packed`` heads.

    ``skips_window`` says whether a tile leaves out the blocks before all of its windows.
    """
    m, n = block
    rows = problem.q_len * packed
    firsts = np.arange(0, rows, m)
    earlier = problem.kv_len - problem.q_len
    ends = np.full_like(firsts, problem.kv_len)
    if problem.one_sided:
        queries = -(-np.minimum(firsts + m, rows) // packed)
        ends = np.minimum(ends, queries + earlier)
    begins = np.zeros_like(firsts)
    if problem.window and skips_window:
        begins = np.maximum(0, firsts // packed + earlier - problem.window)
    blocks = np.maximum(-(-ends // n) - begins // n, 1)
    array, counts = np.unique(blocks, return_counts=True)
    return TileCounts(
        dict(zip(array.tolist(), counts.tolist(), strict=True)), int((ends - begins).sum())
    )


def num_splits(
    rule: Splits,
    counts: Mapping[int, int],
    num_pes: int,
    slots_per_pe: int,
    tiles_of_one: int,
    keys: int = 1,
) -> Chosen:
    """Return the splits of a launch.

    ``counts`` says how many tiles go over how many blocks of keys, ``tiles_of_one`` how many tiles
    a single sequence has, and ``keys`` how long a sequence is.

    Source: the heuristics of FlashAttention 2 and 3 (``num_splits_heuristic`` in
    ``flash_api.cpp`` and ``heuristics.h``; ``flash_prepare_scheduler.cu`` for ``dynamic``), of
    vLLM's ``triton_unified_attention.py`` (``segments``), of SGLang's
    ``get_num_kv_splits_triton`` (``growing``), and of TensorRT-LLM's ``computeMultiBlockCount``
    (``history``).
    """
    tiles, blocks = sum(counts.values()), max(counts)
    slots = num_pes * slots_per_pe
    if rule is Splits.SEGMENTS:
        few = tiles <= _FEW_TILES
        return Chosen(min(_SEGMENTS, blocks) if few else 1, combined=few)
    if rule is Splits.GROWING:
        grown = num_pes * max(math.log2(keys / _SHORT_KEYS), 1)
        return Chosen(min(math.ceil(grown / tiles), _MOST_GROWN, blocks), combined=True)
    if rule is Splits.HISTORY:
        return _by_history(tiles, num_pes, keys)
    if rule is Splits.NONE or blocks <= 1:
        return Chosen(1, combined=False)
    if rule is Splits.DYNAMIC:
        return _dynamic(counts, blocks, num_pes, tiles_of_one)
    if rule is Splits.FILL:
        block = min(blocks, slots // tiles)
    elif rule is Splits.FILL_UP:
        block = min(blocks, -(-slots // tiles))
    elif rule is Splits.FILL_PAIRS:
        block = min(blocks // 2, slots // tiles)
    elif rule is Splits.SINGLE_QUERY:
        block = efficient_splits(tiles, 2 * num_pes, blocks)
    else:
        block = efficient_splits(tiles, slots, blocks) if blocks > _FEW_BLOCKS else 1
    return Chosen(max(block, 1), combined=block > 1)


def _by_history(tiles: int, num_pes: int, keys: int) -> Chosen:
    parts = keys // _HISTORY
    # Sums of many parts would decide.
    parts = max(min(parts, round(math.sqrt(_ROUNDS * parts))), 1)
    parts = max(min(parts, _ROUNDS * num_pes // tiles), 1)
    return Chosen(parts, combined=parts > 1)


def efficient_splits(tiles: int, slots: int, blocks: int) -> int:
    """Return the fewest splits whose last round of slots is nearly as full as the best's."""
    if tiles >= _FULL * slots:
        return 1
    numbers: dict[int, float] = {}
    for splits in range(1, min(_MOST, slots, blocks) + 1):
        if splits > 1 and -(-blocks // splits) == -(-blocks // (splits - 1)):
            continue  # no shorter than with one split less
        rounds = tiles * splits / slots
        numbers[splits] = rounds / math.ceil(rounds)
    best = max(numbers.values())
    return next(splits for splits, share in numbers.items() if share >= _GOOD * best)


def _dynamic(counts: Mapping[int, int], blocks: int, num_pes: int, tiles_of_one: int) -> Chosen:
    most = efficient_splits(tiles_of_one, num_pes, blocks) if blocks > _FEW_BLOCKS else 1
    if most == 1:
        return Chosen(1, combined=False)
    all_blocks = sum(name * count for name, count in counts.items())
    return Chosen(most, combined=True, blocks_of_one=math.ceil(all_blocks * _MARGIN / num_pes))
