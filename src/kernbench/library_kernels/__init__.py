"""Kernels of vendor libraries: what each does on tiles, and how long it takes."""

from kernbench.library_kernels.attention import (
    AttentionProblem,
    FlashKernel,
    Splits,
    attention_kernels,
    efficient_splits,
    flash_backward_launches,
    flash_forward,
    flash_launches,
    ragged_launches,
)
from kernbench.library_kernels.blocks import BlockLaunch, Sweep, time_blocks, wait_us
from kernbench.library_kernels.choice import KernelChoice, fastest, times_of
from kernbench.library_kernels.convolution import (
    Convolution,
    ConvolutionPass,
    by_channel,
    convolution_kernels,
    streamed,
)
from kernbench.library_kernels.engine import KernelTime, kept_share, makespan, time_kernel
from kernbench.library_kernels.gemm import GemmKernel, GemmProblem, LibraryTile, product_choices
from kernbench.library_kernels.linear_attention import (
    LinearProblem,
    causal_convolution,
    channel_convolution,
    chunk_products,
    chunk_scan,
    convolution_update,
    recurrent_decode,
    sequence_convolution,
)
from kernbench.library_kernels.mla import LatentKernel, batched_product, latent_decode
from kernbench.library_kernels.moe import (
    ExpertLoad,
    MoeKernels,
    MoeProblem,
    expert_kernels,
    expert_products,
)
from kernbench.library_kernels.products import (
    Product,
    family_of,
    grouped_kernels,
    product_candidates,
    product_kernels,
)
from kernbench.library_kernels.quantize import missed_again, quantize_rows, scale_and_quantize_rows
from kernbench.library_kernels.reuse import AutogradPhase, Reuse
from kernbench.library_kernels.streams import column_sums, stream
from kernbench.library_kernels.volumes import volume_launch
from kernbench.library_kernels.windows import Windows, window_launch
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip, merged

__all__ = [
    "AttentionProblem",
    "AutogradPhase",
    "BlockLaunch",
    "Convolution",
    "ConvolutionPass",
    "ExpertLoad",
    "FlashKernel",
    "GemmKernel",
    "GemmProblem",
    "KernelChoice",
    "KernelTime",
    "LatentKernel",
    "LibraryKernel",
    "LibraryTile",
    "LinearProblem",
    "MoeKernels",
    "MoeProblem",
    "Product",
    "Reuse",
    "Splits",
    "Sweep",
    "Tiles",
    "Trip",
    "Windows",
    "attention_kernels",
    "batched_product",
    "by_channel",
    "causal_convolution",
    "channel_convolution",
    "chunk_products",
    "chunk_scan",
    "column_sums",
    "convolution_kernels",
    "convolution_update",
    "efficient_splits",
    "expert_kernels",
    "expert_products",
    "family_of",
    "fastest",
    "flash_backward_launches",
    "flash_forward",
    "flash_launches",
    "grouped_kernels",
    "kept_share",
    "latent_decode",
    "makespan",
    "merged",
    "missed_again",
    "product_candidates",
    "product_choices",
    "product_kernels",
    "quantize_rows",
    "ragged_launches",
    "recurrent_decode",
    "scale_and_quantize_rows",
    "sequence_convolution",
    "stream",
    "streamed",
    "time_blocks",
    "time_kernel",
    "times_of",
    "volume_launch",
    "wait_us",
    "window_launch",
]
