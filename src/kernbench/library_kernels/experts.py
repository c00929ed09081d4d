"""Experts: products of their rows with their weights, and what sorts choices and sums up results.

Each expert's rows are padded to whole tiles; the weights of every expert that has a row come from
HBM, which decides while rows are few. Engines launch these kernels whatever their formats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.kernel_time import still_there
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

OUT_BYTES = 2
"""Bytes per element between the kernels: bfloat16."""
_SORTED = 1024
"""Choices in a trip of sorting."""
_CHOICE_BYTES = 8
"""Bytes of a choice: an expert's number and its weight."""
_DEQUANT_SIMPLE = 2
"""Per packed weight: shift, mask and scale, on two elements at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTiles:
    """The structure of one implementation of experts' products."""

    name: str
    """The name of its constants."""
    row_tiles: tuple[int, ...]
    """Rows of a tile, of which the one is taken that holds an expert's mean."""
    columns: tuple[int, ...]
    """Columns of a tile: the most with which every PE has a tile, else the fewest."""
    depth: int
    """Elements of the inner dimension in a trip."""
    resident: int = 2
    pipelined: bool = False
    """Whether loads run ahead of products, so that their latency adds nothing to arithmetic."""
    striped: bool = False
    """Whether all tiles' trips are dealt to the PEs in equal stripes."""

    def rows_for(self, rows: Sequence[int]) -> int:
        """Return the rows of a tile, by those of each expert."""
        mean = sum(rows) / max(len(rows), 1)
        return next((tile for tile in self.row_tiles if tile >= mean), self.row_tiles[-1])

    def columns_for(self, high: int, columns: int, pes: int) -> int:
        """Return the columns of a tile, of which so many lie above each other."""
        widths = [min(column, columns) for column in self.columns]
        return next((width for width in widths if high * (columns // width) >= pes), widths[-1])


MARLIN = ExpertTiles(
    name="marlin_moe",
    row_tiles=(8, 16, 32, 48, 64),
    columns=(128,),
    depth=64,
    resident=1,
    striped=True,
)
CUTLASS = ExpertTiles(
    name="cutlass_moe",
    row_tiles=(16, 32, 64, 128, 256),
    columns=(128, 64),
    depth=64,
    resident=1,
)
DEEPGEMM = ExpertTiles(
    name="deepep_moe",
    row_tiles=(64, 128),
    columns=(128, 64),
    depth=128,
    resident=1,
    pipelined=True,
)
"""DeepGEMM's products of groups, as engines launch them behind DeepEP's exchanges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertProduct:
    """``C[row] = A[row] @ B[expert of row]``."""

    rows: tuple[int, ...]
    """The rows of each expert that has any."""
    columns: int
    depth: int
    empty: int = 0
    """Rows of other ranks' experts, which are set to 0."""
    dtype: str = "bfloat16"
    """The dtype that the matrix engine multiplies."""
    row_bytes: float = 2.0
    """Bytes per element of A, scales included."""
    weight_bytes: float = 2.0
    """Bytes per weight, scales included."""
    pes: int = 1
    """The PEs of the device, as a library's choice of tiles knows them."""
    cache_bytes: float = 0.0
    """Up to which a footprint stays in the cache from launch to launch: 0 where all comes from
    HBM every time."""
    layer_bytes: float = 0.0
    """The weights that are read from launch to launch of this one."""

    @property
    def dequantised(self) -> bool:
        """Whether weights are unpacked to the rows' format before they are multiplied."""
        return self.weight_bytes < 1 < self.row_bytes


def expert_product(product: ExpertProduct, kernel: ExpertTiles) -> LibraryKernel:
    """Return the launch of experts' products."""
    columns, depth, total = product.columns, product.depth, sum(product.rows)
    rows = kernel.rows_for(product.rows)
    high = sum(math.ceil(row / rows) for row in product.rows)
    width = kernel.columns_for(high, columns, product.pes)
    across = math.ceil(columns / width)
    tiles, trips = high * across, float(math.ceil(depth / kernel.depth))
    whole = OUT_BYTES * float(rows * width)
    stored = whole
    if kernel.striped:
        stripes = min(product.pes * kernel.resident, tiles * trips)
        trips, tiles, stored = tiles * trips / stripes, int(stripes), stored * tiles / stripes
    weights = len(product.rows) * depth * columns * product.weight_bytes
    read = total * depth * product.row_bytes
    written = (total + product.empty) * columns * OUT_BYTES
    missed = missed_share(product.cache_bytes, product.layer_bytes + read + written)
    of_rows = missed_share(product.cache_bytes, read + written)
    loaded = kernel.depth * (rows * product.row_bytes + width * product.weight_bytes)
    distinct = min((weights + read) / max(tiles * trips * loaded, 1.0), 1.0)
    trip = Trip(
        flops=2.0 * rows * width * kernel.depth,
        dtype=product.dtype,
        simple=_DEQUANT_SIMPLE * width * kernel.depth if product.dequantised else 0.0,
        loaded_bytes=loaded,
        missed=missed * distinct,
        pipelined=kernel.pipelined,
    )
    result = [Tiles(count=tiles, trips=trips, trip=trip, stored_bytes=stored)]
    if product.empty:
        empty = math.ceil(product.empty / rows) * across
        result.append(Tiles(count=empty, trips=0, trip=trip, stored_bytes=whole))
    return LibraryKernel(
        name=kernel.name,
        tiles=tuple(result),
        resident=kernel.resident,
        hbm_read_bytes=weights * missed + read * of_rows,
        hbm_written_bytes=written * of_rows,
    )


def sort_choices(name: str, choices: int) -> LibraryKernel:
    """Return the launch that counts choices by expert and places them: one block, some at a time.

    ``choices`` are 0 where it only prepares what others count.
    """
    trip = Trip(loaded_bytes=_SORTED * _CHOICE_BYTES)
    tiles = Tiles(count=1, trips=math.ceil(choices / _SORTED), trip=trip)
    return LibraryKernel(name=name, tiles=(tiles,))


def move_rows(
    name: str, rows: float, read: float, written: float, cache_bytes: float = 0.0
) -> LibraryKernel:
    """Return a launch that only moves bytes, a block for each row.

    What the cache holds does not come from HBM.
    """
    count = max(int(rows), 1)
    missed = missed_share(cache_bytes, read + written)
    trip = Trip(loaded_bytes=read / count)
    tiles = Tiles(count=count, trips=1, trip=trip, stored_bytes=written / count)
    return LibraryKernel(
        name=name,
        tiles=(tiles,),
        resident=8,
        hbm_read_bytes=read * missed,
        hbm_written_bytes=written * missed,
    )


def missed_share(cache_bytes: float, footprint: float) -> float:
    """Return the share of a footprint that a cache does not keep: all of twice what it holds."""
    return 1.0 - still_there(footprint / cache_bytes) if cache_bytes else 1.0
