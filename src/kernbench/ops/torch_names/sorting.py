"""Sorting along a dim, and the largest elements: bitonic, on keys that hold each one's index."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernbench.dtypes import int64
from kernbench.errors import UsageError
from kernbench.ops.base.kernel import kernel, new_result
from kernbench.ops.base.layout import as_dims, next_power_of_2
from kernbench.ops.base.promotion import compute_dtype
from kernbench.ops.torch_names.extremes import ValuesAndIndices
from kernbench.runtime_api import Tensor

_BLOCK = 2048
"""The most keys that one program sorts in its TCM."""


@triton.jit
def _ordered_bits(x, DESCENDING: tl.constexpr):
    """Return 32 or 64 bits that order as ``x`` does: NaN above all, both zeros equal."""
    if x.dtype.is_floating():
        WIDTH: tl.constexpr = x.dtype.primitive_bitwidth
        BITS: tl.constexpr = tl.int32 if WIDTH == 32 else tl.int64
        bits = tl.where(x == 0, 0.0, x).to(BITS, bitcast=True)
        # Of two numbers below 0 the one with more bits is the lesser one.
        bits = tl.where(bits < 0, bits ^ ((1 << (WIDTH - 1)) - 1), bits)
        top = tl.full(bits.shape, (1 << (WIDTH - 1)) - 1, BITS)
        bits = tl.where(x != x, top, bits).to(tl.int64)
    elif x.dtype.is_int_unsigned() and x.dtype.primitive_bitwidth == 64:
        bits = (x ^ (1 << 63)).to(tl.int64, bitcast=True)
    else:
        bits = x.to(tl.int64)
    return ~bits if DESCENDING else bits


@kernel
def make_keys(
    keys_ptr, x_ptr, order_ptr, R, PADDED, x_m, x_r, order_m,
    HALF: tl.constexpr, DESCENDING: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``keys[m, i]``: 32 bits that order element ``order[i]`` (or i), then the 31 bits of i.

    ``HALF`` 0 takes the low half of what orders 64-bit elements, 1 the high half, 2 all of a
    narrower one. Where there is no element the key is the largest.
    """
    m = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < R
    at = i.to(tl.int64)
    if order_ptr is not None:
        at = tl.load(order_ptr + m * order_m + i, mask=mask, other=0)
    x = tl.load(x_ptr + m * x_m + at * x_r, mask=mask, other=0).to(COMPUTE)
    bits = _ordered_bits(x, DESCENDING)
    if HALF == 0:
        bits = (bits & 0xFFFFFFFF) - (1 << 31)
    elif HALF == 1:
        bits = bits >> 32
    key = (bits << 31) | i.to(tl.int64)
    tl.store(keys_ptr + m * PADDED + i, tl.where(mask, key, (1 << 63) - 1), mask=i < PADDED)


@kernel
def sort_blocks(keys_ptr, PADDED, SIZE, BLOCK: tl.constexpr):
    """Sort each block of keys; up or down, as its place in runs of ``SIZE`` says."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pointers = keys_ptr + tl.program_id(1).to(tl.int64) * PADDED + i
    down = tl.where((tl.program_id(0) * BLOCK & SIZE) != 0, -1, 0).to(tl.int64)
    tl.store(pointers, tl.sort(tl.load(pointers) ^ down) ^ down)


@kernel
def exchange(keys_ptr, PADDED, SIZE, STEP, BLOCK: tl.constexpr):
    """Exchange keys that are ``STEP`` apart and in the wrong order for their run of ``SIZE``."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = pair // STEP * (2 * STEP) + pair % STEP
    pointers = keys_ptr + tl.program_id(1).to(tl.int64) * PADDED + left
    a, b = tl.load(pointers), tl.load(pointers + STEP)
    is_up = (left & SIZE) == 0
    low, high = tl.minimum(a, b), tl.maximum(a, b)
    tl.store(pointers, tl.where(is_up, low, high))
    tl.store(pointers + STEP, tl.where(is_up, high, low))


@kernel
def take_sorted(
    values_ptr, indices_ptr, keys_ptr, x_ptr, order_ptr, K, PADDED, x_m, x_r, order_m,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the first K elements of each row in the order of its keys, and where they were."""
    m = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < K
    at = tl.load(keys_ptr + m * PADDED + i, mask=mask, other=0) & 0x7FFFFFFF
    if order_ptr is not None:
        at = tl.load(order_ptr + m * order_m + at, mask=mask, other=0)
    tl.store(indices_ptr + m * K + i, at, mask=mask)
    if values_ptr is not None:
        x = tl.load(x_ptr + m * x_m + at * x_r, mask=mask)
        tl.store(values_ptr + m * K + i, x, mask=mask)


def sort(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> ValuesAndIndices:
    """Return the elements along ``dim`` in order, and where they were; equal ones keep their order.

    NaN is above all numbers.
    """
    return _sorted("sort", x, dim, None, descending)


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices of the elements along ``dim`` in order; equal ones keep theirs."""
    return _sorted("argsort", x, dim, None, descending).indices


def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> ValuesAndIndices:
    """Return the ``k`` largest (or smallest) elements along ``dim`` in order, and where they are.

    Raises:
        UsageError: There are fewer than ``k``.
    """
    size = x.shape[as_dims("topk", x, dim)[0]] if x.shape else 1
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= size:
        raise UsageError(f"topk: k must be from 0 to {size}, the size of dim {dim}, but got {k!r}")
    return _sorted("topk", x, dim, k, largest)


def _sorted(
    name: str, x: Tensor, dim: int, count: int | None, descending: bool
) -> ValuesAndIndices:
    if not isinstance(dim, int):
        raise UsageError(f"{name}: dim must be a number, but got {dim!r}")
    shape = tuple(x.shape)
    (at,) = as_dims(name, x, dim) or (0,)
    rows = (x if shape else x[None]).transpose(at, -1)
    sizes = tuple(rows.shape[:-1])
    length = rows.shape[-1]
    k = length if count is None else count
    values = new_result((*sizes, k), x.dtype, x)
    indices = new_result((*sizes, k), int64, x)
    num_rows = math.prod(sizes)
    if num_rows and k:
        flat = rows.reshape(num_rows, length)
        _sort_rows(name, flat, values, indices, k, descending)
    shown = [index.transpose(at, -1) if shape else index.reshape(()) for index in (values, indices)]
    return ValuesAndIndices(*shown)


def _sort_rows(
    name: str, x: Tensor, values: Tensor, indices: Tensor, k: int, descending: bool
) -> None:
    """Sort the rows of a matrix: at once, or 64-bit elements by their low and then high halves."""
    num_rows, length = x.shape
    if length >= 1 << 31:
        raise UsageError(
            f"{name}: rows have {length} elements, and at most 2**31 - 1 can be sorted"
        )
    order = None
    if x.dtype.itemsize == 8:
        order = new_result((num_rows, length), int64, x)
        keys, padded, block = _sorted_keys(name, x, None, 0, descending)
        _take(name, None, order, keys, x, None, (length, padded, block))
        keys, padded, block = _sorted_keys(name, x, order, 1, descending)
    else:
        keys, padded, block = _sorted_keys(name, x, None, 2, descending)
    _take(name, values, indices, keys, x, order, (k, padded, block))


def _take(
    name: str, values: Tensor | None, indices: Tensor, keys: Tensor, x: Tensor,
    order: Tensor | None, sizes: tuple[int, int, int],
) -> None:  # fmt: skip
    k, padded, block = sizes
    x.context.launch(
        name, take_sorted, values, indices, keys, x, order, k, padded, *x.stride(), x.shape[1],
        grid=(triton.cdiv(k, block), x.shape[0]), BLOCK=block,
    )  # fmt: skip


def _sorted_keys(
    name: str, x: Tensor, order: Tensor | None, half: int, descending: bool
) -> tuple[Tensor, int, int]:
    """Return the sorted keys of each row, padded to a power of two, that power, and a block."""
    num_rows, length = x.shape
    padded = max(next_power_of_2(length), 16)
    block = min(padded, _BLOCK)
    context = x.context
    keys = new_result((num_rows, padded), int64, x)
    context.launch(
        name, make_keys, keys, x, order, length, padded, *x.stride(), length,
        grid=(padded // block, num_rows), HALF=half, DESCENDING=descending,
        COMPUTE=tl.int32 if x.dtype.name == "bool" else compute_dtype(x.dtype), BLOCK=block,
    )  # fmt: skip
    size = block
    while True:
        run = 0 if size == padded else size
        step = size // 2
        while step >= block:
            pairs = (padded // 2 // block, num_rows)
            context.launch(name, exchange, keys, padded, run, step, grid=pairs, BLOCK=block)
            step //= 2
        blocks = (padded // block, num_rows)
        context.launch(name, sort_blocks, keys, padded, run, grid=blocks, BLOCK=block)
        if size == padded:
            return keys, padded, block
        size *= 2
