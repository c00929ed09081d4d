"""Products of 8-bit floats by CUTLASS as vLLM builds it, whose tile is named by a rule."""

from __future__ import annotations

import math
from typing import NamedTuple

from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

KERNEL = "vllm_fp8_vllm_default"
"""The name of its constants."""
_DTYPE = "float8_e4m3fn"
_OVERLAP = 3.0


class RuledTile(NamedTuple):
    """A tile of ``m`` x ``n`` results, and the largest product that takes it."""

    m: int
    n: int
    k_bytes: int = 128
    """What of K a trip takes."""
    cluster_rows: int = 1
    """Tiles above each other that load B once between them; idle ones fill the last cluster."""
    most_rows: float = math.inf
    most_cols: float = math.inf
    in_waves: bool = False
    """Whether a block of threads does one tile (``KernelTmaWarpSpecialized``), and not several."""
    missed: float = 0.0
    """Share of cold trips that wait for HBM, where loads run ahead less than they take."""
    overlap: float | None = None
    """As in ``LibraryKernel``, where a tile has another than its library's."""


CUTLASS_RULES: dict[str, tuple[RuledTile, ...]] = {
    "sm90": (
        RuledTile(16, 64, 256, 2, 16, 1280, in_waves=True),
        RuledTile(16, 64, 256, 1, 16, in_waves=True),
        RuledTile(16, 64, 256, 4, 64, 1280, in_waves=True),
        RuledTile(64, 64, 256, 1, 64, in_waves=True, missed=1.0, overlap=5.0),
        RuledTile(64, 128, 128, 2, 128),
        RuledTile(128, 128, 128, 2),
    )
}
"""By architecture; the first that a product is within. Of few rows, A and B are swapped there.

Source: vLLM, csrc/quantization/w8a8/cutlass/c3x/scaled_mm_sm90_fp8_dispatch.cuh.
"""


def cutlass_kernel(architecture: str, m: int, n: int, k: int, out_bytes: int) -> LibraryKernel:
    """Return the launch of ``C[m, n] = A[m, k] @ B[k, n]``; K is never cut."""
    tile = next(
        rule for rule in CUTLASS_RULES[architecture] if m <= rule.most_rows and n <= rule.most_cols
    )
    rows = math.ceil(m / tile.m / tile.cluster_rows) * tile.cluster_rows
    trip = Trip(
        flops=2.0 * tile.m * tile.n * tile.k_bytes,
        dtype=_DTYPE,
        loaded_bytes=(tile.m + tile.n / tile.cluster_rows) * tile.k_bytes,
        missed=tile.missed,
        pipelined=True,
    )
    tiles = Tiles(
        count=rows * math.ceil(n / tile.n),
        trips=math.ceil(k / tile.k_bytes),
        trip=trip,
        stored_bytes=out_bytes * tile.m * tile.n,
    )
    return LibraryKernel(
        name=KERNEL,
        tiles=(tiles,),
        hbm_read_bytes=float((m + n) * k),
        hbm_written_bytes=float(out_bytes * m * n),
        overlap=tile.overlap or _OVERLAP,
        in_waves=tile.in_waves,
    )
