"""Kernels of PyTorch's own (ATen) on GPUs, by the geometry that its sources give them."""

from kernbench.library_kernels.aten.losses import nll_loss
from kernbench.library_kernels.aten.planes import batch_norm, by_channel, group_norm
from kernbench.library_kernels.aten.reductions import Reduction, log_sum_exp, reduction
from kernbench.library_kernels.aten.rows import (
    IN_SHARED_MEMORY,
    layer_norm,
    softmax,
    softmax_backward,
    spatial_softmax,
)
from kernbench.library_kernels.aten.scans import scan
from kernbench.library_kernels.aten.unlike import ELEMENTS_OF_BLOCK, unlike
