"""Which tile a library's kernels take for a shape, where its source says it by rule.

cuBLAS and tuned stacks try what is fastest. The CUTLASS kernels of serving stacks do not: a list of
bounds on rows and columns names one tile, with the cluster that it runs in, whatever the device.
Where few rows are computed, A and B are swapped; a tile here is given as it lies on the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from kernbench.library_kernels import CUTLASS_RULES
from validation.kernels import LibraryTile


@dataclass(frozen=True, slots=True)
class TileRule:
    """A tile, and the largest product that takes it."""

    tile: LibraryTile
    most_rows: float = inf
    most_cols: float = inf
    least_depth: int = 0
    """The least K that takes it."""


def ruled_tile(rules: Sequence[TileRule], m: int, n: int, k: int = 0) -> LibraryTile:
    """Return the tile of the first rule that a result of ``m`` x ``n``, summed over K, is within.

    The last rule has no bounds.
    """
    return next(
        rule.tile
        for rule in rules
        if m <= rule.most_rows and n <= rule.most_cols and k >= rule.least_depth
    )


def _tile(m: int, n: int, k: int = 128, rows: int = 1, cols: int = 1, pes: int = 1) -> LibraryTile:
    return LibraryTile(m=m, n=n, k_bytes=k, pes=pes, cluster_rows=rows, cluster_cols=cols)


FP8_RULES: Mapping[tuple[str, str], tuple[TileRule, ...]] = {
    ("sm90", "vllm"): tuple(
        TileRule(_tile(*rule[:3], rows=rule.cluster_rows), rule.most_rows, rule.most_cols)
        for rule in CUTLASS_RULES["sm90"]
    ),
    # SGLang, sgl-kernel/csrc/gemm/fp8_gemm_kernel.cu; later releases have vLLM's.
    ("sm90", "sglang"): (
        TileRule(_tile(64, 64, cols=8), 1),
        TileRule(_tile(64, 64, cols=4), 64),
        TileRule(_tile(64, 64), 256),
        TileRule(_tile(128, 128), 1024),
        TileRule(_tile(128, 128, rows=2)),
    ),
    # vLLM, csrc/quantization/w8a8/cutlass/scaled_mm_c2x_sm89_fp8_dispatch.cuh.
    ("sm89", "vllm"): (
        TileRule(_tile(16, 64), 16, 8192),
        TileRule(_tile(16, 128, 64), 16, 16384),
        TileRule(_tile(32, 64), 16),
        TileRule(_tile(32, 64), 32, 8192),
        TileRule(_tile(32, 128), 32, 16384),
        TileRule(_tile(32, 64), 32),
        TileRule(_tile(64, 64), 64, 8192),
        TileRule(_tile(64, 128), 64, 16384),
        TileRule(_tile(64, 64), 64),
        TileRule(_tile(64, 128), 128, 8192),
        TileRule(_tile(128, 128, 64), 128, 16384),
        TileRule(_tile(128, 64), 128),
        TileRule(_tile(64, 128), 256, 4096),
        TileRule(_tile(128, 128, 64), 256),
        TileRule(_tile(128, 128, 64), most_cols=4096),
        TileRule(_tile(256, 128, 64), most_cols=8192),
        TileRule(_tile(128, 128, 64)),
    ),
    # SGLang, as above.
    ("sm89", "sglang"): (
        TileRule(_tile(16, 64), 1, 8192),
        TileRule(_tile(32, 64), 1),
        TileRule(_tile(16, 64), 16, 8192),
        TileRule(_tile(32, 64), 16, 16384),
        TileRule(_tile(16, 64), 16),
        TileRule(_tile(32, 64), 64, 16384),
        TileRule(_tile(16, 64), 64),
        TileRule(_tile(64, 64), 128, 16384),
        TileRule(_tile(32, 64), 128),
        TileRule(_tile(128, 64, 64), 256, 8192),
        TileRule(_tile(64, 128, 64), 256, 16384),
        TileRule(_tile(128, 64), 256),
        TileRule(_tile(128, 128, 64)),
    ),
    # vLLM, csrc/quantization/w8a8/cutlass/c3x/scaled_mm_sm100_fp8_dispatch.cuh.
    ("sm100", "vllm"): (
        TileRule(_tile(32, 128, cols=4), 16),
        TileRule(_tile(64, 128, 256, cols=4), 64, least_depth=4096),
        TileRule(_tile(64, 64), 64),
        TileRule(_tile(128, 128, rows=2), 256),
        TileRule(_tile(256, 128, cols=2, pes=2)),
    ),
    # vLLM, csrc/quantization/w8a8/cutlass/c3x/scaled_mm_sm120_fp8_dispatch.cuh.
    ("sm120", "vllm"): (
        TileRule(_tile(16, 64), 16),
        TileRule(_tile(32, 64), 32),
        TileRule(_tile(64, 64), 256),
        TileRule(_tile(128, 128)),
    ),
    # SGLang, as above, and vLLM before it had tiles for few rows.
    ("sm120", "sglang"): (TileRule(_tile(128, 128)),),
}
"""Rules by architecture and by whose they are."""
