"""Kernels of vendor libraries: what each does on tiles, and how long it takes."""

from kernbench.library_kernels.attention import (
    CUDNN_FIRST,
    AttentionProblem,
    FlashKernel,
    Splits,
    attention_kernels,
    described_kernels,
    efficient_splits,
    flash_backward_launches,
    flash_launches,
    ragged_launches,
    variant_names,
)
from kernbench.library_kernels.blocks import BlockLaunch, Sweep, time_blocks, wait_us
from kernbench.library_kernels.choice import KernelChoice, fastest, times_of
from kernbench.library_kernels.convolution import (
    Convolution,
    ConvolutionPass,
    by_channel,
    convolution_kernels,
)
from kernbench.library_kernels.direct import direct_launch
from kernbench.library_kernels.engine import KernelTime, kept_share, makespan, stretch, time_kernel
from kernbench.library_kernels.experts import (
    CUTLASS,
    DEEPGEMM,
    MARLIN,
    OUT_BYTES,
    ExpertProduct,
    ExpertTiles,
    expert_product,
    move_rows,
    sort_choices,
)
from kernbench.library_kernels.products import (
    Product,
    family_of,
    grouped_kernels,
    product_candidates,
    product_kernels,
    tiled_product,
)
from kernbench.library_kernels.reuse import AutogradPhase, Reuse
from kernbench.library_kernels.streams import column_sums, stream
from kernbench.library_kernels.tile_rules import ProductTile
from kernbench.library_kernels.windows import Windows, window_launch
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip, merged
