"""The largest and the smallest elements along dims, and where they are; NaN beats all numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from kernbench.dtypes import DType, bool_, int64, uint8
from kernbench.errors import UsageError
from kernbench.ops.base.kernel import kernel, new_result
from kernbench.ops.base.layout import Dims, as_dims, kept_shape, row_walk
from kernbench.ops.base.promotion import compute_dtype, is_number
from kernbench.ops.elementwise import maximum, minimum, ne
from kernbench.runtime_api import Tensor


class ValuesAndIndices(NamedTuple):
    """What torch's ``max(dim)``, ``sort`` and ``topk`` return."""

    values: Tensor
    indices: Tensor


@kernel
def extremes_strided(
    out_ptr, at_ptr, x_ptr, D1, M, R, out_0, out_1, out_m, x_0, x_1, x_m, x_r,
    LARGEST: tl.constexpr, EMPTY: tl.constexpr, MAY_BE_NAN: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """``out[d0, d1, m] = max (or min) over r of x[d0, d1, m, r]``; ``at`` is the first such r."""
    d0 = (tl.program_id(1) // D1).to(tl.int64)
    d1 = tl.program_id(1) % D1
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = x_ptr + d0 * x_0 + d1 * x_1
    best = tl.full((BLOCK_M, BLOCK_R), EMPTY, dtype=COMPUTE)
    place = tl.full((BLOCK_M, BLOCK_R), 0, dtype=tl.int64) + tl.arange(0, BLOCK_R)[None, :]
    for first in range(0, R, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        mask = (m[:, None] < M) & (r[None, :] < R)
        x = tl.load(start + m[:, None] * x_m + r[None, :] * x_r, mask=mask, other=EMPTY).to(COMPUTE)
        better = x > best if LARGEST else x < best
        if MAY_BE_NAN:
            better = (better | (x != x)) & (best == best)
        best = tl.where(better, x, best)
        if at_ptr is not None:
            place = tl.where(better, r[None, :].to(tl.int64), place)
    top = tl.max(best, axis=1) if LARGEST else tl.min(best, axis=1)
    value = best == top[:, None]
    if MAY_BE_NAN:
        nan = best != best
        has_nan = tl.max(nan.to(tl.int32), axis=1) != 0
        value = tl.where(has_nan[:, None], nan, value)
        top = tl.where(has_nan, float("nan"), top)
    offsets = d0 * out_0 + d1 * out_1 + m * out_m
    tl.store(out_ptr + offsets, top.to(out_ptr.dtype.element_ty), mask=m < M)
    if at_ptr is not None:
        index = tl.min(tl.where(value, place, R), axis=1)
        tl.store(at_ptr + offsets, index, mask=m < M)


def amax(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return the largest element over a dim, several, or all; NaN if there is one.

    Raises:
        UsageError: There is nothing to take the maximum of.
    """
    return _extreme("amax", x, dim, keepdim)


def amin(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return the smallest element over a dim, several, or all; NaN if there is one.

    Raises:
        UsageError: There is nothing to take the minimum of.
    """
    return _extreme("amin", x, dim, keepdim)


def max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest element; with ``dim``, (values, indices) along it; of a tensor, maximum.

    Where several are the largest, the index is the first one's.
    """
    if dim is None:
        return amax(x)
    return _with_indices("max", x, dim, keepdim) if _is_dim(dim) else maximum(x, dim)


def min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest element; with ``dim``, (values, indices) along it; of a tensor, minimum.

    Where several are the smallest, the index is the first one's.
    """
    if dim is None:
        return amin(x)
    return _with_indices("min", x, dim, keepdim) if _is_dim(dim) else minimum(x, dim)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the (first) largest element along a dim, or in the flattened tensor."""
    return _index("max", x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the (first) smallest element along a dim, or in the flattened tensor."""
    return _index("min", x, dim, keepdim)


def all(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return whether all elements are not 0, over a dim, several, or all."""
    return _truth("all", "amin", x, dim, keepdim)


def any(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return whether any element is not 0, over a dim, several, or all."""
    return _truth("any", "amax", x, dim, keepdim)


def _is_dim(value: object) -> bool:
    return isinstance(value, int) and is_number(value)


def _truth(what: str, name: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    shape = kept_shape(x, as_dims(what, x, dim), keepdim)
    if math.prod(x.shape) == 0:
        return x.context.zeros(shape, dtype=bool_, device=x.device).fill_(what == "all")
    result = _extreme(name, x if x.dtype == bool_ else ne(x, 0), dim, keepdim)
    # As torch does, for programs from before it had bools.
    return result.to(x.dtype) if x.dtype == uint8 else result


def _index(name: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is not None:
        return _with_indices(name, x, dim, keepdim).indices
    indices = _with_indices(name, x.reshape(-1), 0, False).indices
    return indices.reshape((1,) * len(x.shape)) if keepdim else indices


def _with_indices(name: str, x: Tensor, dim: int, keepdim: bool) -> ValuesAndIndices:
    (at,) = as_dims(name, x, dim) or (0,)
    shape = kept_shape(x, as_dims(name, x, dim), keepdim)
    values, indices = _extreme_dim(name, x if x.shape else x[None], at, with_indices=True)
    assert indices is not None
    return ValuesAndIndices(values.reshape(shape), indices.reshape(shape))


def _extreme(name: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    dims = as_dims(name, x, dim)
    result = x if dims else x[None]
    for number in reversed(dims or (0,)):
        result, _ = _extreme_dim(name, result, number)
    return result.reshape(kept_shape(x, dims, keepdim))


def _extreme_dim(
    name: str, x: Tensor, dim: int, *, with_indices: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the extremes along one dim, which is kept with size 1, and where they are."""
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    out = new_result(shape, x.dtype, x)
    indices = new_result(shape, int64, x) if with_indices else None
    if math.prod(shape) == 0:
        return out, indices
    if x.shape[dim] == 0:
        raise UsageError(f"{name} along a dim without elements, shape {tuple(x.shape)}")
    grid, numbers, blocks = row_walk(x, dim, out)
    is_largest = name in ("max", "amax")
    out.context.launch(
        name, extremes_strided, out, indices, x, *numbers, grid=grid,
        LARGEST=is_largest, EMPTY=_least(x.dtype) if is_largest else _most(x.dtype),
        MAY_BE_NAN=x.dtype.is_floating_point, COMPUTE=compute_dtype(x.dtype), **blocks,
    )  # fmt: skip
    return out, indices


def _least(dtype: DType) -> float | int:
    """Return the smallest value of a dtype."""
    if dtype.is_floating_point:
        return -math.inf
    return 0 if dtype.name == "bool" else int(np.iinfo(dtype.numpy).min)


def _most(dtype: DType) -> float | int:
    """Return the largest value of a dtype."""
    if dtype.is_floating_point:
        return math.inf
    return 1 if dtype.name == "bool" else int(np.iinfo(dtype.numpy).max)
