"""Kernels that read outside of their tensors, each in another way."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def blocks(x_ptr, out_ptr, n, first, BLOCK: tl.constexpr):
    """Whole blocks from element ``first`` on, of which only the store is masked."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + first + at) * 2, mask=at < n)


@triton.jit
def filled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Lanes past ``n`` are masked off and hold 7."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n, other=7.0))


@triton.jit
def rows(x_ptr, out_ptr, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + row * stride + column)
    tl.store(out_ptr + row * BLOCK + column, x)


@triton.jit
def gathered(index_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + tl.load(index_ptr + at)))


@triton.jit
def gathered_rows(index_ptr, x_ptr, out_ptr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)[None, :]
    index = tl.load(index_ptr + row)[:, None]
    tl.store(out_ptr + row[:, None] * BLOCK + column, tl.load(x_ptr + index * BLOCK + column))


@triton.jit
def turns(count_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    """As many blocks as data says."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for turn in range(tl.load(count_ptr)):
        total += tl.load(x_ptr + turn * BLOCK + at)
    tl.store(out_ptr + at, total)


@triton.jit
def product(x_ptr, y_ptr, out_ptr, K, BLOCK: tl.constexpr):
    """A product whose last turn reads past the rows of y."""
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        x = tl.load(x_ptr + i * K + k + j, mask=k + j < K, other=0.0)
        acc = tl.dot(x, tl.load(y_ptr + (k + i) * BLOCK + j), acc, input_precision="ieee")
    tl.store(out_ptr + i * BLOCK + j, acc)
