"""Kernels whose programs decide by data."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def collatz(x, steps):
    at = tl.program_id(0)
    value = tl.load(x + at)
    count = 0
    while value != 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        count += 1
    tl.store(steps + at, count)


@triton.jit
def bisect(sorted_x, keys, found, n):
    at = tl.program_id(0)
    key = tl.load(keys + at)
    low = 0
    high = n
    while low < high:
        middle = (low + high) // 2
        if tl.load(sorted_x + middle) < key:
            low = middle + 1
        else:
            high = middle
    tl.store(found + at, low)


@triton.jit
def newton(x, root, tolerance):
    at = tl.program_id(0)
    square = tl.load(x + at)
    guess = square
    error = tl.abs(guess * guess - square)
    while error > tolerance:
        guess = 0.5 * (guess + square / guess)
        error = tl.abs(guess * guess - square)
    tl.store(root + at, guess)


@triton.jit
def row_sums(starts, values, sums, B: tl.constexpr):
    """A CSR matrix: the length of the loop is loaded."""
    row = tl.program_id(0)
    first = tl.load(starts + row)
    last = tl.load(starts + row + 1)
    total = tl.zeros((B,), tl.float32)
    for at in range(first, last, B):
        lane = at + tl.arange(0, B)
        total += tl.load(values + lane, lane < last, other=0)
    tl.store(sums + row, tl.sum(total))


@triton.jit
def skip(flags, x, out, B: tl.constexpr):
    row = tl.program_id(0)
    if tl.load(flags + row) == 0:
        return
    at = row * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at) * 2)


@triton.jit
def locked_sum(x, out, locks, B: tl.constexpr, GROUP: tl.constexpr):
    """How tutorial 05 sums the gradients of its weights."""
    row = tl.program_id(0)
    group = row % GROUP
    lane = tl.arange(0, B)
    part = tl.load(x + row * B + lane)
    lock = locks + group
    count = locks + GROUP + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        part += tl.load(out + group * B + lane)
    tl.store(out + group * B + lane, part)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def persistent_scale(x, out, counter, tiles, B: tl.constexpr):
    tile = tl.atomic_add(counter, 1)
    while tile < tiles:
        at = tile * B + tl.arange(0, B)
        tl.store(out + at, tl.load(x + at) * 2)
        tile = tl.atomic_add(counter, 1)


@triton.jit
def persistent_matmul(
    a, b, c, counter, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    tile = tl.atomic_add(counter, 1)
    while tile < tiles:
        rows = tile // tl.cdiv(N, BN) * BM + tl.arange(0, BM)
        cols = tile % tl.cdiv(N, BN) * BN + tl.arange(0, BN)
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            inner = k + tl.arange(0, BK)
            x = tl.load(a + rows[:, None] * K + inner[None, :], rows[:, None] < M, other=0)
            y = tl.load(b + inner[:, None] * N + cols[None, :], cols[None, :] < N, other=0)
            sums += tl.dot(x, y)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        tl.store(c + rows[:, None] * N + cols[None, :], sums, mask)
        tile = tl.atomic_add(counter, 1)


@triton.jit
def last_one_sums(x, parts, out, counter, B: tl.constexpr):
    """A sum in one launch: the program that is last adds the parts up."""
    pid = tl.program_id(0)
    tl.store(parts + pid, tl.sum(tl.load(x + pid * B + tl.arange(0, B))))
    if tl.atomic_add(counter, 1) == tl.num_programs(0) - 1:
        total = 0.0
        for i in range(tl.num_programs(0)):
            total += tl.load(parts + i)
        tl.store(out, total)


@triton.jit
def relay(flags, x, n):
    """Each program waits for the one after it, so the last one has to go first."""
    pid = tl.program_id(0)
    if pid < n - 1:
        while tl.load(flags + pid + 1, volatile=True) == 0:
            pass
        tl.store(x + pid, tl.load(x + pid + 1) + 1)
    else:
        tl.store(x + pid, 100)
    tl.atomic_xchg(flags + pid, 1)


@triton.jit
def grouped_matmul(
    a_addresses, b_addresses, c_addresses, sizes, groups, tile_counts,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tutorial 08: products of other sizes, their matrices found through loaded addresses."""
    tile = tl.program_id(0)
    first = 0
    for group in range(groups):
        m = tl.load(sizes + group * 3)
        n = tl.load(sizes + group * 3 + 1)
        k = tl.load(sizes + group * 3 + 2)
        tiles_n = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * tiles_n
        while tile >= first and tile < first + tiles:
            a = tl.load(a_addresses + group).to(tl.pointer_type(tl.float16))
            b = tl.load(b_addresses + group).to(tl.pointer_type(tl.float16))
            c = tl.load(c_addresses + group).to(tl.pointer_type(tl.float16))
            rows = (tile - first) // tiles_n * BM + tl.arange(0, BM)
            cols = (tile - first) % tiles_n * BN + tl.arange(0, BN)
            inner = tl.arange(0, BK)
            a_tile = a + rows[:, None] * k + inner[None, :]
            b_tile = b + inner[:, None] * n + cols[None, :]
            sums = tl.zeros((BM, BN), tl.float32)
            for _ in range(tl.cdiv(k, BK)):
                sums += tl.dot(tl.load(a_tile), tl.load(b_tile))
                a_tile += BK
                b_tile += BK * n
            tl.store(c + rows[:, None] * n + cols[None, :], sums.to(tl.float16))
            tile += tl.num_programs(0)
        first += tiles


@triton.jit
def gather_from(addresses, which, out, n, B: tl.constexpr):
    """A tile of pointers: every lane may go to another tensor."""
    lane = tl.program_id(0) * B + tl.arange(0, B)
    mask = lane < n
    address = tl.load(addresses + tl.load(which + lane, mask, other=0), mask, other=0)
    pointers = address.to(tl.pointer_type(tl.float32), bitcast=True)
    value = tl.load(pointers + lane, mask, other=-1.0)
    tl.store(out + lane, value, mask)
    tl.store(pointers + lane, value + 1, mask)


@triton.jit
def spin(flag, out):
    if tl.program_id(0) > 0:
        while tl.load(flag, volatile=True) == 0:
            pass
    tl.store(out + tl.program_id(0), 1)


@triton.jit
def never(x):
    value = tl.load(x)
    while value >= 0:
        value = tl.abs(value)
    tl.store(x, value)


@triton.jit
def far_load(index, x, out):
    at = tl.load(index)
    if at > 0:
        tl.store(out, tl.load(x + at))


@triton.jit
def nested_calls(x, out, n):
    at = tl.program_id(0)
    tl.store(out + at, _digits(tl.load(x + at)))


@triton.jit(noinline=True)
def _digits(value):
    count = 0
    while value > 0:
        value = value // 10
        count += 1
    return count


@triton.jit
def mailbox(flag, box, out):
    pid = tl.program_id(0)
    if pid == 0:
        tl.atomic_poll(flag, tl.num_programs(0) - 1)
        tl.store(out, tl.atomic_load(box))
    else:
        tl.atomic_store(box + pid, pid)
        tl.atomic_add(box, pid)
        tl.atomic_add(flag, 1)


@triton.jit
def poll_all(flags, out, B: tl.constexpr):
    lane = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.atomic_poll(flags + lane, lane)
        tl.store(out + lane, 1)
    else:
        tl.atomic_add(flags + tl.program_id(0), tl.program_id(0))


@triton.jit
def poll_with_timeout(flag, out):
    seen = tl.atomic_poll(flag, 1, timeout_ns=1000)
    tl.store(out + tl.program_id(0), seen.to(tl.int32) + 5)
    if tl.program_id(0) == 2:
        tl.atomic_xchg(flag, 1)


@triton.jit
def talk(x):
    pid = tl.program_id(0)
    if tl.load(x + pid) > 0:
        tl.device_print("loaded", pid)


@triton.jit
def paged(cache, table, out, pages, P: tl.constexpr, D: tl.constexpr):
    """Rows of a cache that a table of pages finds, through a descriptor."""
    row = tl.program_id(0)
    rows = tl.make_tensor_descriptor(cache, [pages * P, D], [D, 1], [P, D])
    total = tl.zeros((P, D), tl.float32)
    for i in range(3):
        page = tl.load(table + row * 3 + i)
        if page >= 0:
            total += rows.load([page * P, 0])
    lane = tl.arange(0, P)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + row * P * D + lane, total)


@triton.jit
def bounded_wait(flag, out, tries):
    """Looks a number of times, and adds up what it waits for."""
    pid = tl.program_id(0)
    seen = 0
    for _ in range(tries):
        if seen == 0:
            seen = tl.load(flag, volatile=True)
    tl.store(out + pid, seen)
    if pid == 3:
        tl.atomic_xchg(flag, 7)


@triton.jit
def choose(x, y, out, B: tl.constexpr):
    """A pointer that is chosen by data."""
    lane = tl.arange(0, B)
    value = tl.load(x + tl.program_id(0))
    source = x
    if value > 0:
        source = y
    tl.store(out + tl.program_id(0) * B + lane, tl.load(source + lane))


@triton.jit
def row_stats(logits, stats, tops, bounds, N: tl.constexpr, S: tl.constexpr, B: tl.constexpr):
    """Maximum, sum of exponentials, minimum and count per slice of a row; as vLLM's sampler.

    Two places return early, so that both branch to one block.
    """
    pid = tl.program_id(0)
    row = pid // S
    part = pid % S
    if tl.load(bounds + row) >= 1.0:
        return
    if tl.load(tops + row) < N:
        return
    length = (N + S - 1) // S
    start = part * length
    end = tl.minimum(start + length, N)
    lane = tl.arange(0, B)
    largest = -float("inf")
    total = 0.0
    smallest = float("inf")
    count = tl.zeros((), dtype=tl.float32)
    for i in range(start, end, B):
        x = tl.load(logits + row * N + i + lane, mask=i + lane < end, other=-float("inf"))
        finite = x > -float("inf")
        now = tl.maximum(largest, tl.max(x))
        rescale = tl.where(largest == -float("inf"), 0.0, tl.exp(largest - now))
        total = total * rescale + tl.sum(tl.where(finite, tl.exp(x - now), 0.0))
        largest = now
        smallest = tl.minimum(smallest, tl.min(tl.where(finite, x, float("inf"))))
        count += tl.sum(finite.to(tl.float32))
    tl.store(stats + pid * 4 + 0, largest)
    tl.store(stats + pid * 4 + 1, total)
    tl.store(stats + pid * 4 + 2, smallest)
    tl.store(stats + pid * 4 + 3, count)


@triton.jit
def spin_or_return(flag, mode, out):
    """Returns from two places before it waits."""
    pid = tl.program_id(0)
    if tl.load(mode + pid) == 1:
        return
    if tl.load(mode + pid) == 2:
        return
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(out + pid, 1)


@triton.jit
def append(items, lengths, counts, S: tl.constexpr):
    at = tl.program_id(0)
    length = tl.load(lengths + at)
    count = tl.load(counts + at)
    for i in range(count):
        tl.store(items + at * S + length + i, length + i)
    tl.store(lengths + at, length + count)
