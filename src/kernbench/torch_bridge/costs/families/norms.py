"""Gradients of layer norms of PyTorch on GPUs.

Before 2.0 one block of threads summed 16 columns over all rows (``GammaBetaBackwardCUDAKernel`` of
``layer_norm_kernel.cu``), and read means and deviations through one thread of 16 first. Networks
with few channels and many rows, such as a ViT-Ti of 512 pictures, had 12 blocks for a device.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from kernbench.library_kernels import column_sums
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.versions import release_of_kernels
from kernbench.torch_bridge.costs.families import streams
from kernbench.torch_bridge.costs.library import timing_of_library
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import plain_name
from kernbench.torch_bridge.costs.sequences import in_turn

_BACKWARD, _KERNEL = "aten.native_layer_norm_backward", "aten_norm_weights"
_WITH_MORE_BLOCKS = (2, 0)
"""The first release whose blocks read means and deviations by all their threads (PyTorch, pull
request 87814)."""
_LEAST_ROWS = 512
"""With fewer, a thread sums a column."""


class _Gradient(NamedTuple):
    streams: streams.Streams
    sums: tuple[int, int, int] | None
    """Rows, columns and bytes of an element of sums that are a launch of their own."""


def _key(costs: OperationCosts, call: OperationCall) -> _Gradient:
    *copies, stream = streams.key(costs, call)
    sums = _sums(costs, call)
    if sums is not None:
        stream = stream._replace(read=stream.read // 2)
    return _Gradient((*copies, stream), sums)


def _sums(costs: OperationCosts, call: OperationCall) -> tuple[int, int, int] | None:
    """Return the sums of gradients of weights; None where a stream of bytes stands for them."""
    if not costs.has_kernel(_KERNEL) or release_of_kernels() >= _WITH_MORE_BLOCKS:
        return None
    grad, shape, wanted = call.args[0], call.args[2], call.args[-1]
    columns = prod(shape)
    rows = grad.numel() // max(columns, 1)
    is_launched = columns and rows >= _LEAST_ROWS and any(wanted[1:])
    return (rows, columns, grad.element_size()) if is_launched else None


def _kernels(costs: OperationCosts, name: str, norm: _Gradient, sip_id: int) -> OperationTiming:
    timing = streams.kernels(costs, name, norm.streams, sip_id)
    if norm.sums is None:
        return timing
    assert costs.library is not None
    kernel = column_sums(_KERNEL, *norm.sums)
    sip = costs.machine.sip_at(sip_id)
    return in_turn(timing, timing_of_library(_BACKWARD, (kernel,), sip, costs.library))


FAMILY = Family(matches=lambda func: plain_name(func) == _BACKWARD, key=_key, kernels=_kernels)
