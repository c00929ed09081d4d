"""Shapes and strides of operands, simplified for the kernels. No device, no data.

These are functions of a few small tuples that a program asks for again with every launch, so their
answers are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import triton

from kernbench.errors import UsageError
from kernbench.ops.base.kernel import normal_dim, require_dims
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


Ints = tuple[int, ...]

MAX_DIMS = 4
"""The most dims that the strided kernels loop over, after adjacent dims have been merged."""


@lru_cache(maxsize=4096)
def broadcast_shape(*shapes: Ints) -> Ints:
    """Return the shape that all ``shapes`` broadcast to.

    Raises:
        UsageError: Two sizes differ and neither is 1.

    >>> broadcast_shape((4, 1), (3,))
    (4, 3)
    """
    result: list[int] = [1] * max((len(shape) for shape in shapes), default=0)
    for shape in shapes:
        for dim, size in enumerate(shape, start=len(result) - len(shape)):
            if result[dim] == 1:
                result[dim] = size
            elif size not in (1, result[dim]):
                listed = " and ".join(str(shape) for shape in shapes)
                raise UsageError(
                    f"shapes {listed} do not broadcast: sizes {result[dim]} and {size} meet in "
                    f"dim {dim - len(result)}"
                )
    return tuple(result)


@lru_cache(maxsize=4096)
def broadcast_strides(shape: Ints, strides: Ints, target: Ints) -> Ints:
    """Return the strides that walk a tensor as if it had shape ``target``: 0 where it repeats."""
    missing = len(target) - len(shape)
    own = (0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))
    return (0,) * missing + tuple(own)


@dataclass(frozen=True)
class Walk:
    """How several operands are walked together: sizes, and per operand the stride of each dim."""

    shape: Ints
    strides: tuple[Ints, ...]

    @property
    def is_flat(self) -> bool:
        """Whether every operand is one run of consecutive elements."""
        return len(self.shape) <= 1 and all(set(strides) <= {1} for strides in self.strides)

    def padded(self, num_dims: int = MAX_DIMS) -> Walk:
        """Return the same walk with leading dims of size 1.

        Raises:
            UsageError: It has more dims than that.
        """
        missing = num_dims - len(self.shape)
        if missing < 0:
            raise UsageError(
                f"an operand laid out over {len(self.shape)} dims that do not merge (sizes "
                f"{self.shape}) is more than the {num_dims} that kernbench.ops can walk; make it "
                "contiguous first"
            )
        return Walk(
            (1,) * missing + self.shape,
            tuple((0,) * missing + strides for strides in self.strides),
        )


@lru_cache(maxsize=4096)
def build_walk(shape: Ints, *strides: Ints) -> Walk:
    """Return the walk with the fewest dims: no size 1, and no two that any operand could merge.

    >>> build_walk((2, 3, 4), (12, 4, 1), (12, 4, 1))
    Walk(shape=(24,), strides=((1,), (1,)))
    >>> build_walk((2, 3, 4), (12, 4, 1), (0, 4, 1))
    Walk(shape=(2, 12), strides=((12, 1), (0, 1)))
    """
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        here = [operand[dim] for operand in strides]
        if sizes and all(own[-1] == step * size for own, step in zip(steps, here, strict=True)):
            sizes[-1] *= size
            for own, step in zip(steps, here, strict=True):
                own[-1] = step
        else:
            sizes.append(size)
            for own, step in zip(steps, here, strict=True):
                own.append(step)
    return Walk(tuple(sizes), tuple(tuple(own) for own in steps))


def contiguous_strides(shape: Sequence[int]) -> Ints:
    """Return row-major strides, in elements."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def next_power_of_2(value: int) -> int:
    """Return the smallest power of two that is not below ``value`` (1 for 0)."""
    return 1 << max(value - 1, 0).bit_length()


def block(size: int, smallest: int, largest: int) -> int:
    """Return the tile size for a dim: the power of two that holds it, within bounds."""
    return min(max(next_power_of_2(size), smallest), largest)
