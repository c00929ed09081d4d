"""Layer norms of PyTorch on GPUs: rows, of a block each, and the gradients of weights.

``vectorized_layer_norm_kernel`` of ATen's ``layer_norm_kernel.cu`` has a block of 128 threads for a
row, and four elements for a thread. The block combines means and deviations by shuffles within its
warps, then through shared memory. A row of 40 elements takes as many instructions as one of 512.

Before 2.0 one block of threads summed 16 columns over all rows (``GammaBetaBackwardCUDAKernel`` of
``layer_norm_kernel.cu``), and read means and deviations through one thread of 16 first. Networks
with few channels and many rows, such as a ViT-Ti of 512 pictures, had 12 blocks for a device.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from kernbench.hardware import load_library
from kernbench.library_kernels import column_sums
from kernbench.torch_bridge.base.versions import release_of_kernels
from kernbench.torch_bridge.costs.library import timing_of_library

if TYPE_CHECKING:
    from torch import Tensor

    from kernbench.hardware import Machine
    from kernbench.torch_bridge.base.operation_timing import OperationTiming

_FORWARD = "aten.native_layer_norm"
_CYCLES = 380
"""The cycles of a PE for a block. Fitted to timm's ConvNeXt-Atto-OLS, whose rows have 40 to 320
elements, on RTX 3090; RTX 4090, RTX 5090 and RTX PRO 6000 ask for 390 to 430
(docs/model/norms-and-reductions.md)."""
_BACKWARD, _KERNEL = "aten.native_layer_norm_backward", "aten_norm_weights"
_WITH_MORE_BLOCKS = (2, 0)
"""The first release whose blocks read means and deviations by all their threads (PyTorch, pull
request 87814)."""
_LEAST_ROWS = 512
"""With fewer, a thread sums a column."""


def rows_ps(machine: Machine, name: str, args: Any, sip_id: int) -> int:
    """Return how long a device issues the blocks of a layer norm's rows; 0 for what has none."""
    if name != _FORWARD or machine.spec.kernel_library is None:
        return 0
    sip = machine.sip_at(sip_id)
    rows = args[0].numel() // max(prod(args[1]), 1)
    return sip.cycles_ps(-(-rows // sip.num_pes) * _CYCLES)


class NormWeightCosts:
    """Schedules of such gradients on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        architecture = machine.spec.kernel_library
        library = None if architecture is None else load_library(architecture)
        self._library = library if library is not None and _KERNEL in library.names() else None

    def columns(self, name: str, args: Any) -> int:
        """Return how many columns an operation sums so; 0 where a stream of bytes stands for it."""
        if name != _BACKWARD or self._library is None or release_of_kernels() >= _WITH_MORE_BLOCKS:
            return 0
        grad, shape, wanted = args[0], args[2], args[-1]
        columns = prod(shape)
        rows = grad.numel() // max(columns, 1)
        return columns if rows >= _LEAST_ROWS and any(wanted[1:]) else 0

    def timing(self, grad: Tensor, columns: int, sip_id: int) -> OperationTiming:
        """Return the schedules of the launch."""
        assert self._library is not None
        rows = grad.numel() // columns
        kernel = column_sums(_KERNEL, rows, columns, grad.element_size())
        return timing_of_library(_BACKWARD, (kernel,), self._machine.sip_at(sip_id), self._library)
