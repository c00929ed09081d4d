"""A tensor viewed as rows of its last dim, for the kernels that work on whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.ops.base.kernel import require_dims
from kernbench.ops.base.layout import block, build_walk, next_power_of_2
from kernbench.runtime_api import Tensor


@dataclass(frozen=True)
class TensorRows:
    """A tensor as ``count`` rows of ``length`` elements, at one stride each."""

    tensor: Tensor
    count: int
    length: int
    row_stride: int
    stride: int


def as_rows(what: str, tensor: Tensor) -> TensorRows:
    """Return a tensor as rows; one whose leading dims are not evenly spaced is copied first.

    Raises:
        UsageError: It has no dims.
    """
    require_dims(what, tensor, 1)
    walk = build_walk(tuple(tensor.shape[:-1]), tuple(tensor.stride()[:-1]))
    if len(walk.shape) > 1:
        return as_rows(what, tensor.contiguous())
    count = walk.shape[0] if walk.shape else 1
    row_stride = walk.strides[0][0] if walk.shape else 0
    return TensorRows(tensor, count, tensor.shape[-1], row_stride, tensor.stride()[-1])


def row_blocks(count: int, length: int) -> dict[str, int]:
    """Return the tile for kernels that hold whole rows: about 4096 elements, at least one row."""
    columns = next_power_of_2(length)
    return {"BLOCK_M": block(count, 1, max(4096 // columns, 1)), "BLOCK_N": columns}
