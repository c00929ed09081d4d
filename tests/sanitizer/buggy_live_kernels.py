"""Kernels that decide by data, with a mistake that a constexpr puts in."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def locked_count(x_ptr, lock_ptr, BUG: tl.constexpr):
    """With the bug the lock is given back before the sum is stored."""
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    x = tl.load(x_ptr)
    if BUG:
        tl.atomic_xchg(lock_ptr, 0)
    tl.store(x_ptr, x + 1)
    if not BUG:
        tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def last_sums(x_ptr, parts_ptr, out_ptr, count_ptr, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """The last program to arrive adds up what the others have stored."""
    pid = tl.program_id(0)
    tl.store(parts_ptr + pid, tl.sum(tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK))))
    if tl.atomic_add(count_ptr, 1, sem=ORDER) == tl.num_programs(0) - 1:
        total = 0.0
        for i in range(tl.num_programs(0)):
            total += tl.load(parts_ptr + i)
        tl.store(out_ptr, total)


@triton.jit
def hand_on(flag_ptr, x_ptr, BUG: tl.constexpr):
    """Program 1 waits until program 0 has stored; with the bug that stores after it has told."""
    if tl.program_id(0) == 0:
        if BUG:
            tl.atomic_xchg(flag_ptr, 1)
        tl.store(x_ptr, 5)
        if not BUG:
            tl.atomic_xchg(flag_ptr, 1)
    else:
        while tl.load(flag_ptr, volatile=True) == 0:
            pass
        tl.store(x_ptr + 1, tl.load(x_ptr))


@triton.jit
def ragged_sums(starts_ptr, x_ptr, out_ptr, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of lengths that are data; unmasked, the last block leaves the row."""
    row = tl.program_id(0)
    first = tl.load(starts_ptr + row)
    last = tl.load(starts_ptr + row + 1)
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(first, last, BLOCK):
        lane = at + tl.arange(0, BLOCK)
        if MASKED == 2:
            total += tl.load(x_ptr + lane, mask=lane < last, other=0.0)
        elif MASKED == 1:
            total += tl.load(x_ptr + lane, mask=lane < last)
        else:
            total += tl.load(x_ptr + lane)
    tl.store(out_ptr + row, tl.sum(total))


@triton.jit
def ragged_ratio(counts_ptr, x_ptr, out_ptr, BUG: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row)
    total = 0.0
    for _ in range(tl.load(counts_ptr + row)):
        total += x
    bottom = total if BUG else total + 1.0
    tl.store(out_ptr + row, x / bottom)


@triton.jit
def far_rows(counts_ptr, rows_ptr, x_ptr, out_ptr, stride, BUG: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of row numbers, and as many turns as data says: row * stride leaves 32 bits."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(tl.load(counts_ptr)):
        row = tl.load(rows_ptr + lane)
        offset = row * stride
        if not BUG:
            offset = offset & 7
        total += tl.load(x_ptr + offset)
    tl.store(out_ptr + lane, total)


@triton.jit
def far_row(row_ptr, x_ptr, out_ptr, stride, BUG: tl.constexpr):
    """One row number, which the kernel knows once it is loaded."""
    row = tl.load(row_ptr)
    if row > 0:
        offset = row * stride
        if not BUG:
            offset = offset & 7
        tl.store(out_ptr, tl.load(x_ptr + offset))


@triton.jit
def put(x_ptr, flag_ptr, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 7.0)
    tl.atomic_xchg(flag_ptr, 1, sem=ORDER, scope="sys")


@triton.jit
def take(x_ptr, flag_ptr, out_ptr, BLOCK: tl.constexpr):
    while tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys") == 0:
        pass
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane))


@triton.jit
def scatters(counts_ptr, index_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    """As many turns as data says, each of which stores where data says."""
    lane = tl.arange(0, BLOCK)
    for turn in range(tl.load(counts_ptr + tl.program_id(0))):
        index = tl.load(index_ptr + turn * BLOCK + lane)
        tl.store(out_ptr + tl.program_id(0) * BLOCK + index, tl.load(x_ptr + lane))


@triton.jit
def branch_on_sum(x_ptr, out_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if BUG:
        x = tl.load(x_ptr + at, mask=at < n)
    else:
        x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    if tl.sum(x) > 3:
        tl.store(out_ptr + at, at * 1.0)


@triton.jit(noinline=True)
def add_where_positive(count, out_ptr):
    if count > 0:
        tl.store(out_ptr, 5)


@triton.jit
def turns_of_row(count_ptr, out_ptr, n, HOW: tl.constexpr):
    """Programs past ``n`` load nothing; what they then decide by depends on ``HOW``."""
    row = tl.program_id(0)
    count = tl.load(count_ptr + row, mask=row < n)
    total = 0
    if HOW == "for":
        for turn in range(count):
            total += turn
    elif HOW == "while":
        while total < count:
            total += 1
    elif row < n:
        for turn in range(count):
            total += turn
    tl.store(out_ptr + row, total, mask=row < n)


@triton.jit
def branch_of_row(count_ptr, out_ptr, n, HOW: tl.constexpr):
    """The same for branches."""
    row = tl.program_id(0)
    count = tl.load(count_ptr + row, mask=row < n)
    if HOW == "call":
        if tl.load(count_ptr) >= 0:  # decides by data
            add_where_positive(count, out_ptr + row)
        return
    if HOW == "derived":
        condition = (count + 1) * 2 > 4
    elif HOW == "and":
        condition = (row < n) & (count > 1)
    else:
        condition = tl.where(row < n, count, 0) > 1
    if condition:
        tl.store(out_ptr + row, 5, mask=row < n)


@triton.jit
def rows_of_experts(expert_ptr, x_ptr, out_ptr, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    """Programs past ``n`` know no expert, and must not use one."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    expert = tl.load(expert_ptr + row, mask=row < n)
    if tl.load(expert_ptr) >= 0:  # decides by data
        mask = (at < BLOCK) & (row < n)
        if HOW == "address":
            tl.store(out_ptr + row * BLOCK + at, tl.load(x_ptr + expert * BLOCK + at))
        elif HOW == "mask":
            tl.store(out_ptr + row * BLOCK + at, 1.0, mask=at < expert)
        elif HOW == "value":
            tl.store(out_ptr + row * BLOCK + at, at * expert * 1.0)
        else:
            x = tl.load(x_ptr + expert * BLOCK + at, mask=mask, other=0.0) * expert
            tl.store(out_ptr + row * BLOCK + at, x, mask=mask & (at < expert + BLOCK))
