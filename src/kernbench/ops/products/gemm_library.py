"""The tile of a matrix product: one chosen by its sizes, or by a library.

:func:`~kernbench.ops.matmul` has one kernel, whose tile follows from the sizes. A vendor's library
picks among kernels that were tuned for the device. ``use_tiles`` puts such a choice in its place,
for the calling rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kernbench.dtypes import DType
from kernbench.errors import UsageError
from kernbench.hardware import SipSpec
from kernbench.ops.products.gemm_tiles import GemmTile
from kernbench.runtime_api import RuntimeContext, current_context

# Rows and columns of a tile (the second number of a pair is an extra piece), and split-K.
_TILES = (
    (64, (32, 0), (1, 8)),
    (64, (64, 0), (1, 4, 8, 16)),
    (64, (128, 0), (1, 6)),
    (128, (128, 0), (1, 3, 6)),
    (128, (256, 0), (1, 2, 3)),
)
_WIDE_TILES = (
    (128, (64, 32), (1,)),
    (128, (128, 32), (1,)),
    (128, (128, 64), (1,)),
)
# Columns, and rows of B, of programs that have one row of C.
_VECTOR_TILES = ((8, 512), (16, 256), (64, 64), (128, 64))
_LEAST_PART = 256
"""A part of a split K is at least this long."""


def library_tiles(k: int, dtype: DType, wide: bool, vector: bool = False) -> Iterator[GemmTile]:
    """Yield the tiles that a vendor's library has for products with ``k`` columns of A.

    ``wide`` adds those that are no power of two wide: libraries for matrix engines that take
    operands from shared memory have them. ``vector`` adds those of a product whose A is one row,
    which need no matrix engine. The number of stages is left to who knows the device.
    """
    block_k = max(64, 128 // dtype.itemsize) if dtype.itemsize < 4 else 32
    for block_m, (first, second), splits in _TILES + (_WIDE_TILES if wide else ()):
        for split in splits:
            tile = GemmTile(block_m, first, block_k, block_n2=second, split_k=split)
            if split == 1 or tile.steps(k) * block_k >= _LEAST_PART:
                yield tile
    if vector:
        yield from vector_tiles()


_LEAST_STAGES, _MOST_STAGES = 2, 5
_SHARED_NATIVE_M = 64


def takes_shared_operands(sip: SipSpec) -> bool:
    """Return whether a matrix engine takes its operands from shared memory, not from registers.

    Its native tiles have 64 rows or more.
    """
    return sip.pe.gemm.native_m >= _SHARED_NATIVE_M


def in_stages(tile: GemmTile, dtype: DType, sip: SipSpec) -> GemmTile | None:
    """Return the tile with as many stages as fit in TCM and registers, None if too few do."""
    held = max(tile.sum_bytes, sip.pe.register_kib * 1024)
    stage = (tile.block_m + tile.columns) * tile.block_k * dtype.itemsize
    stages = min(_MOST_STAGES, (sip.tcm_bytes - held) // stage)
    return replace(tile, num_stages=stages) if stages >= _LEAST_STAGES else None


def vector_tiles() -> Iterator[GemmTile]:
    """Yield the tiles of products whose A is one row, which need no matrix engine."""
    for columns, rows in _VECTOR_TILES:
        yield GemmTile(1, columns, rows)


TileChoice = Callable[[int, int, int, DType, SipSpec], GemmTile]
"""From M, N, K, the dtype and the device to a tile."""


def use_tiles(choose: TileChoice | None, torch: RuntimeContext | None = None) -> None:
    """Make ``choose`` pick the tiles of the calling rank's matrix products; None undoes that.

    Products of single matrices then are :func:`~kernbench.ops.matmul_tiled`; a bias and an
    activation are a kernel of their own. Batches keep the kernel that they have.

    Raises:
        UsageError: ``choose`` cannot be called.
    """
    if choose is not None and not callable(choose):
        raise UsageError(f"use_tiles takes a function or None, but got {choose!r}")
    extensions = (torch or current_context()).run.rank_state.extensions
    if choose is None:
        extensions.pop(use_tiles, None)
    else:
        extensions[use_tiles] = choose


def chosen_tiles(torch: Any) -> TileChoice | None:
    """Return what chooses the tiles of the calling rank's products, None if only sizes do."""
    tiles: TileChoice | None = torch.run.rank_state.extensions.get(use_tiles)
    return tiles
