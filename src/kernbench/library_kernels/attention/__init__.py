"""Attention kernels: forward, backward, how they split keys, and which libraries have which."""

from kernbench.library_kernels.attention.backward import flash_backward_launches
from kernbench.library_kernels.attention.catalogue import (
    CUDNN_FIRST,
    attention_kernels,
    described_kernels,
    variant_names,
)
from kernbench.library_kernels.attention.forward import (
    AttentionProblem,
    FlashKernel,
    flash_launches,
    ragged_launches,
)
from kernbench.library_kernels.attention.splits import Splits, efficient_splits
