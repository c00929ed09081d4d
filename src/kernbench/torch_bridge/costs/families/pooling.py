"""Pooling over planes: ATen's kernels whose threads go through a window each."""

from __future__ import annotations

from math import ceil, prod

from kernbench.library_kernels import Windows, window_launch
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.costs.library import timing_of_blocks
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import plain_name
from kernbench.torch_bridge.costs.scattered import is_planar

_THREADS = {
    "aten.max_pool2d_with_indices": 256,
    "aten.avg_pool2d": 1024,
    "aten.max_pool3d_with_indices": 256,
    "aten.avg_pool3d": 256,
}
_BLOCK = (8, 32)
"""Rows and columns of a block of windows of three dims."""


def _key(costs: OperationCosts, call: OperationCall) -> Windows | None:
    if costs.library is None or not is_planar(call.args[0]):
        return None
    plane = call.args[0]
    results = call.result if isinstance(call.result, (list, tuple)) else (call.result,)
    shape = results[0].shape
    name = plain_name(call.func)
    dims = 3 if "3d" in name else 2
    window = _of_dims(call.args[1], dims)
    strides = _of_dims(call.args[2], dims) if len(call.args) > 2 and call.args[2] else window
    count = prod(shape)
    if dims == len(_BLOCK) + 1:
        sides = zip(shape[-2:], _BLOCK, strict=True)
        count = prod(shape[:-2]) * prod(ceil(size / block) * block for size, block in sides)
    return Windows(
        results=count,
        window=window,
        strides=strides,
        itemsize=plane.element_size(),
        read_bytes=plane.nbytes,
        written_bytes=sum(result.nbytes for result in results),
        threads=_THREADS[name],
    )


def _of_dims(sizes: list[int], dims: int) -> tuple[int, ...]:
    """Return the sizes of a window, of which PyTorch takes one for all dims."""
    return tuple(sizes) if len(sizes) == dims else (sizes[0],) * dims


def _kernels(costs: OperationCosts, name: str, windows: Windows, sip_id: int) -> OperationTiming:
    launch = window_launch(name, windows)
    return timing_of_blocks(name, [launch], costs.machine.sip_at(sip_id))


FAMILY = Family(matches=lambda func: plain_name(func) in _THREADS, key=_key, kernels=_kernels)
