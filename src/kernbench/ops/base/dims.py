"""Which dims an operation goes over, and how its kernel walks them."""

from __future__ import annotations

import triton

from kernbench.ops.base.kernel import normal_dim
from kernbench.ops.base.layout import block, build_walk
from kernbench.runtime_api import Tensor

Dims = int | tuple[int, ...] | list[int] | None


def as_dims(what: str, x: Tensor, dim: Dims) -> tuple[int, ...]:
    """Return dims counted from the front, in order; all of them for None or none.

    Raises:
        UsageError: The tensor does not have one of them.
    """
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(len(x.shape)))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if not x.shape:
        return tuple(number for number in dims if normal_dim(what, x[None], number))
    return tuple(sorted({normal_dim(what, x, number) for number in dims}))


def kept_shape(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """Return the shape that is left of a tensor whose ``dims`` were reduced."""
    sizes = enumerate(x.shape)
    if keepdim:
        return tuple(1 if dim in dims else size for dim, size in sizes)
    return tuple(size for dim, size in sizes if dim not in dims)


def row_walk(
    x: Tensor, dim: int, *outs: Tensor
) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """Return grid, numbers and blocks of a kernel that goes along ``dim`` of a tensor.

    The other dims merge into three at most. The numbers are their sizes (but for the first), the
    length of ``dim``, the strides of each of ``outs`` (whose ``dim`` has size 1) and of ``x``.
    """
    rest = [index for index in range(len(x.shape)) if index != dim]
    walk = build_walk(
        tuple(x.shape[number] for number in rest),
        *(tuple(tensor.stride()[at] for at in rest) for tensor in (*outs, x)),
    ).padded(3)
    d0, d1, m = walk.shape
    blocks = reduce_blocks(m, x.shape[dim])
    strides = tuple(stride for own in walk.strides for stride in own)
    grid = (triton.cdiv(m, blocks["BLOCK_M"]), d0 * d1)
    return grid, (d1, m, x.shape[dim], *strides, x.stride()[dim]), blocks


def reduce_blocks(m: int, length: int) -> dict[str, int]:
    """Return the tile of a reduction: about 4096 elements."""
    block_r = block(length, 16, 1024)
    return {"BLOCK_M": block(m, 1, max(4096 // block_r, 1)), "BLOCK_R": block_r}
