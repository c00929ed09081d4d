"""Shapes, strides and indices of views: integer arithmetic without any data.

Strides and offsets count elements, as in torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kernbench.errors import IndexRangeError, UsageError

Ints = tuple[int, ...]


def as_shape(sizes: Sequence[Any]) -> Ints:
    """Return sizes given as ``(2, 3)`` or as ``((2, 3),)`` as a tuple of integers.

    Raises:
        UsageError: A size is not an integer.
    """
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    try:
        return tuple([operator.index(size) for size in sizes])
    except TypeError:
        raise UsageError(f"a shape must be integers, but got {tuple(sizes)}") from None


def check_sizes(shape: Ints) -> Ints:
    """Return ``shape``, which has no negative size.

    Raises:
        UsageError: A size is negative.
    """
    if any(size < 0 for size in shape):
        raise UsageError(f"sizes must not be negative, but got shape {shape}")
    return shape


def contiguous_strides(shape: Ints) -> Ints:
    """Return row-major strides.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def is_contiguous(shape: Ints, strides: Ints) -> bool:
    """Return whether the elements lie one after another, in row-major order."""
    if 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def infer_shape(shape: Ints, num_elements: int) -> Ints:
    """Return ``shape`` with its -1, if any, replaced by what is left.

    Raises:
        UsageError: The sizes do not multiply to ``num_elements``.
    """
    known = math.prod(size for size in shape if size != -1)
    unknown = shape.count(-1)
    if unknown > 1 or any(size < -1 for size in shape):
        raise UsageError(f"shape {shape} may have one -1 and no other negative size")
    if unknown:
        if known == 0 or num_elements % known:
            raise UsageError(f"shape {shape} does not divide {num_elements} elements")
        shape = tuple(num_elements // known if size == -1 else size for size in shape)
    if math.prod(shape) != num_elements:
        raise UsageError(
            f"shape {shape} holds {math.prod(shape)} elements, but the tensor has {num_elements}"
        )
    return shape


def reshaped_strides(shape: Ints, strides: Ints, new_shape: Ints) -> Ints | None:
    """Return strides that show the same memory as ``new_shape``, or None if it takes a copy.

    >>> reshaped_strides((4, 6), (6, 1), (2, 2, 6))
    (12, 6, 1)
    >>> reshaped_strides((4, 6), (1, 4), (24,)) is None
    True
    """
    if 0 in shape:
        return contiguous_strides(new_shape)
    dims = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    new_strides = [0] * len(new_shape)
    new_dim = 0
    first = 0
    while first < len(dims):
        # Old dims first..last that cover the same elements as new dims start..new_dim.
        old_count, new_count = dims[first][0], 1
        last, start = first + 1, new_dim
        while new_dim < len(new_shape) and (new_count < old_count or new_shape[new_dim] == 1):
            new_count *= new_shape[new_dim]
            new_dim += 1
            while old_count < new_count:
                old_count *= dims[last][0]
                last += 1
        for before, after in zip(dims[first : last - 1], dims[first + 1 : last], strict=True):
            if before[1] != after[0] * after[1]:
                return None
        step = dims[last - 1][1]
        for dim in range(new_dim - 1, start - 1, -1):
            new_strides[dim] = step
            step *= new_shape[dim]
        first = last
    for dim in range(new_dim, len(new_shape)):
        new_strides[dim] = 1
    return tuple(new_strides)


def normal_dim(dim: int, num_dims: int) -> int:
    """Return ``dim`` counted from the front.

    Raises:
        UsageError: There is no such dim.
    """
    if not -num_dims <= dim < num_dims:
        raise UsageError(f"dim {dim} does not exist in a tensor of {num_dims} dims")
    return dim % num_dims


def transposed(order: Sequence[int], values: Ints) -> Ints:
    """Return ``values`` in the order of the dims ``order``."""
    return tuple(values[dim] for dim in order)


def is_basic_index(index: object) -> bool:
    """Return whether an index is made of integers, slices, None and ``...``: it gives a view."""
    items = index if isinstance(index, tuple) else (index,)
    return all(
        item is None
        or item is Ellipsis
        or isinstance(item, slice)
        or (
            hasattr(item, "__index__") and type(item) is not bool and not getattr(item, "shape", ())
        )
        for item in items
    )


def indexed(offset: int, shape: Ints, strides: Ints, index: Any) -> tuple[int, Ints, Ints]:
    """Return offset, shape and strides of the view that a basic index selects.

    Raises:
        IndexError: An integer is out of range, or there are more items than dims.
        UsageError: A slice has a step below 1; torch refuses it too.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    consumed = sum(item is not None and item is not Ellipsis for item in items)
    if consumed > len(shape):
        raise IndexRangeError(f"{consumed} indices for a tensor of shape {shape}")
    if Ellipsis not in items:
        items.append(Ellipsis)
    new_shape: list[int] = []
    new_strides: list[int] = []
    dim = 0
    for item in items:
        if item is None:
            new_shape.append(1)
            new_strides.append(0)
        elif item is Ellipsis:
            kept = len(shape) - consumed
            new_shape += shape[dim : dim + kept]
            new_strides += strides[dim : dim + kept]
            dim += kept
            consumed = len(shape)  # a second ... stands for no dim
        elif isinstance(item, slice):
            start, stop, step = item.indices(shape[dim])
            if step < 1:
                raise UsageError(f"slice steps must be at least 1, but got {step}")
            offset += start * strides[dim] if stop > start else 0
            new_shape.append(max(0, -(-(stop - start) // step)))
            new_strides.append(strides[dim] * step)
            dim += 1
        else:
            position = operator.index(item)
            if not -shape[dim] <= position < shape[dim]:
                raise IndexRangeError(
                    f"index {position} is out of range for dim {dim} of size {shape[dim]}"
                )
            offset += position % shape[dim] * strides[dim]
            dim += 1
    return offset, tuple(new_shape), tuple(new_strides)


def expanded_strides(shape: Ints, strides: Ints, new_shape: Ints) -> Ints:
    """Return strides that show a tensor as ``new_shape``, repeating dims of size 1.

    Raises:
        UsageError: The shapes do not broadcast.
    """
    missing = len(new_shape) - len(shape)
    if missing < 0:
        raise UsageError(f"a tensor of shape {shape} cannot be expanded to {new_shape}")
    result = [0] * missing
    for size, stride, new_size in zip(shape, strides, new_shape[missing:], strict=True):
        if size == new_size:
            result.append(stride)
        elif size == 1:
            result.append(0)
        else:
            raise UsageError(f"a tensor of shape {shape} cannot be expanded to {new_shape}")
    return tuple(result)


def has_overlap(shape: Ints, strides: Ints) -> bool:
    """Return whether two elements of an expanded view share memory, so that it is not writable."""
    return any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True))
