"""Kernels with a mistake that a constexpr puts in, so that each has a twin without it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather(table_ptr, index_ptr, out_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    index = tl.load(index_ptr + at, mask=mask, other=0)
    if BUG:
        index += n
    tl.store(out_ptr + at, tl.load(table_ptr + index, mask=mask), mask=mask)


@triton.jit
def fill(out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, at.to(tl.float32), mask=at < n)


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def neighbour(x_ptr, BUG: tl.constexpr, BLOCK: tl.constexpr):
    """Every program adds to its block; with the bug it also reads the first of the next one."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if BUG:
        x += tl.load(x_ptr + (tl.program_id(0) + 1) % tl.num_programs(0) * BLOCK)
    tl.store(x_ptr + at, x)


@triton.jit
def total(x_ptr, out_ptr, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + at))
    if BUG:
        tl.store(out_ptr, tl.load(out_ptr) + part)
    else:
        tl.atomic_add(out_ptr, part)


@triton.jit
def same_place(x_ptr, out_ptr, BUG: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    part = tl.sum(tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK)))
    tl.store(out_ptr + (pid // 2 if BUG else pid), part)


@triton.jit
def row_sum(x_ptr, out_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if BUG:
        x = tl.load(x_ptr + tl.program_id(0) * n + at, mask=at < n)
    else:
        x = tl.load(x_ptr + tl.program_id(0) * n + at, mask=at < n, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x * 2))


@triton.jit
def unmasked_store(x_ptr, out_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n) + 1
    if not BUG:
        x = tl.where(at < n, x, 0.0)
    tl.store(out_ptr + at, x)


@triton.jit
def undefined_mask(x_ptr, out_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    mask = x > 0
    if not BUG:
        mask &= at < n
    tl.store(out_ptr + at, at.to(tl.float32), mask=mask)


@triton.jit
def undefined_address(x_ptr, out_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    index = tl.load(x_ptr + at, mask=at < n)
    if BUG:
        tl.store(out_ptr + index, 1.0)
    else:
        tl.store(out_ptr + index, 1.0, mask=at < n)


@triton.jit
def dot_rows(a_ptr, b_ptr, out_ptr, m, k, BUG: tl.constexpr, B: tl.constexpr):
    """Rows past m are masked without other=, which is fine; columns past k are not."""
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    if BUG:
        a = tl.load(a_ptr + i * k + j, mask=(i < m) & (j < k))
    else:
        a = tl.load(a_ptr + i * k + j, mask=(i < m) & (j < k), other=0.0)
        a = tl.where(j < k, a, 0.0)
    b = tl.load(b_ptr + i * B + j, mask=i < k, other=0.0)
    tl.store(out_ptr + i * B + j, tl.dot(a, b), mask=i < m)


@triton.jit
def carried(x_ptr, out_ptr, n, rounds, BUG: tl.constexpr, BLOCK: tl.constexpr):
    """A sum over rounds whose lanes past n are undefined from the first round on."""
    at = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for r in range(rounds):
        acc += tl.load(x_ptr + r * n + at, mask=at < n)
    if BUG:
        tl.store(out_ptr + at, acc)
    else:
        tl.store(out_ptr + at, acc, mask=at < n)


@triton.jit
def far_row(x_ptr, index_ptr, out_ptr, stride, BUG: tl.constexpr, BLOCK: tl.constexpr):
    """Rows by data: row * stride leaves 32 bits; wrapped around it is inside the tensor again."""
    at = tl.arange(0, BLOCK)
    row = tl.load(index_ptr + at)
    if BUG:
        offset = row * stride
    else:
        offset = (row * stride) & 7
    tl.store(out_ptr + at, tl.load(x_ptr + offset))


@triton.jit
def far_block(x_ptr, out_ptr, stride, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) + 2
    if BUG:
        offset = row * stride
    else:
        offset = (row * stride) & 7
    tl.store(out_ptr + at, tl.load(x_ptr + offset + at))


@triton.jit
def ratio(x_ptr, out_ptr, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    bottom = x if BUG else x + 1
    y = x / bottom
    tl.store(out_ptr + at, y * 2)


@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * 2, mask=at < n)


@triton.jit
def set_columns(x_ptr, first, columns, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write some columns of a matrix."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    tl.store(x_ptr + row * stride + first + column, 1.0, mask=column < columns)


@triton.jit
def set_rows(x_ptr, index_ptr, n, BLOCK: tl.constexpr):
    """Write the elements that an index tensor names."""
    at = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + at, mask=at < n, other=0)
    tl.store(x_ptr + index, 1.0, mask=at < n)


@triton.jit
def count(x_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(x_ptr + tl.arange(0, BLOCK), 1.0)


@triton.jit
def in_pairs(out_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    """Two lanes store one element; without the bug they store the same, or one is masked off."""
    at = tl.arange(0, BLOCK)
    if BUG:
        tl.store(out_ptr + at // 2, at * 1.0, mask=at < n)
    else:
        tl.store(out_ptr + at // 2, at // 2 * 1.0, mask=at < n)
        tl.store(out_ptr + at // 2, at * 2.0, mask=(at < n) & (at % 2 == 0))
        tl.store(out_ptr + tl.zeros((BLOCK,), tl.int32), 0.0)


@triton.jit
def overlapping_rows(out_ptr, stride, BLOCK: tl.constexpr):
    """Rows of a matrix whose stride may be shorter than they are."""
    row, column = tl.arange(0, 2)[:, None], tl.arange(0, BLOCK)[None, :]
    tl.store(out_ptr + row * stride + column, row * BLOCK + column)


@triton.jit
def halves_of_words(out_ptr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Words that begin in every ``STEP``-th byte."""
    at = tl.arange(0, BLOCK)
    first = out_ptr.to(tl.pointer_type(tl.int8)) + at * STEP
    tl.store(first.to(tl.pointer_type(tl.int32)), at + 1)


@triton.jit
def scatter(index_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(index_ptr + at), tl.load(x_ptr + at))


@triton.jit
def lower_half(x_ptr, out_ptr, BUG: tl.constexpr, B: tl.constexpr):
    """Sums of the rows of a lower triangle; what lies above it is loaded, and dropped."""
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + i * B + j)
    if not BUG:
        x = tl.where(i >= j, x, 0.0)
    tl.store(out_ptr + tl.arange(0, B), tl.sum(x, 1))


@triton.jit
def fill_lower_half(x_ptr, B: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    tl.store(x_ptr + i * B + j, i + 1.0, mask=i >= j)


@triton.jit
def turned(x_ptr, out_ptr, n, BUG: tl.constexpr, BY: tl.constexpr, BLOCK: tl.constexpr):
    """Turn each block of a scratch tensor by some lanes, without a barrier between if BUG."""
    first = tl.program_id(0) * BLOCK
    lane = tl.arange(0, BLOCK)
    for part in range(2):
        tl.store(x_ptr + first + lane, (lane + part).to(tl.float32), mask=lane < n)
        if not BUG:
            tl.debug_barrier()
        taken = tl.load(x_ptr + first + (lane + BY) % BLOCK, mask=lane < n)
        tl.store(out_ptr + first + lane, taken, mask=lane < n)


@triton.jit
def summed_between(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Threads that have exchanged a sum have waited for each other."""
    lane = tl.arange(0, BLOCK)
    tl.store(x_ptr + lane, lane.to(tl.float32))
    total = tl.sum(lane)
    tl.store(out_ptr + lane, tl.load(x_ptr + (lane + BLOCK // 4) % BLOCK) + total)
