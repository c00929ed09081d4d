"""Gradients of a layer norm's weights, as PyTorch computed them before 2.0.

One block of threads summed 16 columns over all rows (``GammaBetaBackwardCUDAKernel`` of
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

_OPERATION, _KERNEL = "aten.native_layer_norm_backward", "aten_norm_weights"
_WITH_MORE_BLOCKS = (2, 0)
"""The first release whose blocks read means and deviations by all their threads (PyTorch, pull
request 87814)."""
_LEAST_ROWS = 512
"""With fewer, a thread sums a column."""


class NormWeightCosts:
    """Schedules of such gradients on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        architecture = machine.spec.kernel_library
        library = None if architecture is None else load_library(architecture)
        self._library = library if library is not None and _KERNEL in library.names() else None

    def columns(self, name: str, args: Any) -> int:
        """Return how many columns an operation sums so; 0 where a stream of bytes stands for it."""
        if name != _OPERATION or self._library is None or release_of_kernels() >= _WITH_MORE_BLOCKS:
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
        return timing_of_library(_OPERATION, (kernel,), self._machine.sip_at(sip_id), self._library)
