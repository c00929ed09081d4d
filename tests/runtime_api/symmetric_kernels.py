"""Kernels that reach the memory of other ranks, and wait for them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def meet(pads, rank, WORLD: tl.constexpr):
    """Wait until the same program of every rank has come here."""
    lane = tl.arange(0, WORLD)
    slot = tl.program_id(0) * WORLD
    mine = tl.load(pads + rank).to(tl.pointer_type(tl.int32)) + slot
    theirs = tl.load(pads + lane).to(tl.pointer_type(tl.int32)) + slot + rank
    tl.atomic_xchg(theirs, 1, sem="release", scope="sys")
    one = tl.full((WORLD,), 1, tl.int32)
    left = WORLD
    while left > 0:
        left -= tl.sum(tl.atomic_cas(mine + lane, one, one - 1, sem="acquire", scope="sys"))


@triton.jit
def sum_of_arguments(parts, out, n, WORLD: tl.constexpr, B: tl.constexpr):
    """The peers' tensors are arguments; nobody waits."""
    lane = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for rank in tl.static_range(WORLD):
        total += tl.load(parts[rank] + lane, lane < n, other=0)
    tl.store(out + lane, total, lane < n)


@triton.jit
def one_shot(parts, pads, out, n, rank, WORLD: tl.constexpr, B: tl.constexpr):
    meet(pads, rank, WORLD)
    sum_of_arguments(parts, out, n, WORLD, B)
    meet(pads, rank, WORLD)


@triton.jit
def one_shot_by_address(addresses, pads, out, n, rank, WORLD: tl.constexpr, B: tl.constexpr):
    lane = tl.program_id(0) * B + tl.arange(0, B)
    meet(pads, rank, WORLD)
    total = tl.zeros((B,), tl.float32)
    for peer in range(WORLD):
        part = tl.load(addresses + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(part + lane, lane < n, other=0)
    tl.store(out + lane, total, lane < n)
    meet(pads, rank, WORLD)


@triton.jit
def two_shot(addresses, pads, rank, share, WORLD: tl.constexpr, B: tl.constexpr):
    """Each rank adds up its share of all parts, and writes the sum to all of them."""
    inside = tl.program_id(0) * B + tl.arange(0, B)
    mask = inside < share
    lane = rank * share + inside
    meet(pads, rank, WORLD)
    total = tl.zeros((B,), tl.float32)
    for peer in range(WORLD):
        part = tl.load(addresses + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(part + lane, mask, other=0)
    for peer in range(WORLD):
        part = tl.load(addresses + peer).to(tl.pointer_type(tl.float32))
        tl.store(part + lane, total, mask)
    meet(pads, rank, WORLD)


@triton.jit
def translate(pointer, heap_bases, from_rank, to_rank):
    """The same place in another rank's heap."""
    base = tl.load(heap_bases + from_rank).to(tl.uint64)
    other = tl.load(heap_bases + to_rank).to(tl.pointer_type(tl.int8))
    return (other + (tl.cast(pointer, tl.uint64) - base)).to(pointer.dtype)


@triton.jit
def put_to_next(data, flags, heap_bases, out, rank, WORLD: tl.constexpr, B: tl.constexpr):
    """Write to the next rank's heap, tell it so, and hand on what the one before has written."""
    lane = tl.arange(0, B)
    after = (rank + 1) % WORLD
    tl.store(translate(data + lane, heap_bases, rank, after), (rank * 100 + lane).to(tl.float32))
    tl.atomic_add(translate(flags, heap_bases, rank, after), 1, sem="release", scope="sys")
    while tl.atomic_cas(flags, 1, 0, sem="acquire", scope="sys") != 1:
        pass
    tl.store(out + lane, tl.load(data + lane))


@triton.jit
def count_up(lock, count, times):
    """A lock and what it protects lie on one rank; all count there, one after another."""
    for _ in range(times):
        while tl.atomic_cas(lock, 0, 1, sem="acquire", scope="sys") != 0:
            pass
        tl.store(count, tl.load(count) + 1)
        tl.atomic_xchg(lock, 0, sem="release", scope="sys")


@triton.jit
def send(flag, value):
    tl.atomic_xchg(flag, value, sem="release", scope="sys")


@triton.jit
def send_by_store(flag, value):
    tl.store(flag, value)


@triton.jit
def await_flag(flag, value, out):
    while tl.load(flag, volatile=True) != value:
        pass
    tl.store(out, value + 1)


@triton.jit
def await_by_poll(flag, value, out):
    tl.atomic_poll(flag, value)
    tl.store(out, value + 1)


@triton.jit
def await_by_cas(flag, value, out):
    while tl.atomic_cas(flag, value, 0, sem="acquire", scope="sys") != value:
        pass
    tl.store(out, value + 1)


@triton.jit
def turn_about(mine, theirs, out, turns, first):
    """Two ranks play ping-pong."""
    turn = first
    while turn < turns:
        if turn > 0:
            while tl.atomic_add(mine, 0, sem="acquire", scope="sys") < turn:
                pass
        tl.atomic_xchg(theirs, turn + 1, sem="release", scope="sys")
        turn += 2
    tl.store(out, turn)


@triton.jit
def copy_rows(source, target, rows, B: tl.constexpr):
    """A loop that decides nothing."""
    lane = tl.program_id(0) * B + tl.arange(0, B)
    width = tl.num_programs(0) * B
    for row in range(rows):
        tl.store(target + row * width + lane, tl.load(source + row * width + lane))


@triton.jit
def load_far(addresses, peer, at, out):
    part = tl.load(addresses + peer).to(tl.pointer_type(tl.float32))
    tl.store(out, tl.load(part + at))


@triton.jit
def from_all(addresses, out, WORLD: tl.constexpr, B: tl.constexpr):
    """Each program loads from another rank."""
    peer = tl.program_id(0) % WORLD
    part = tl.load(addresses + peer).to(tl.pointer_type(tl.float32))
    lane = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + lane, tl.load(part + lane))


@triton.jit
def lane_by_lane(addresses, which, out, B: tl.constexpr):
    """Each element comes from another rank, and is counted there."""
    lane = tl.arange(0, B)
    part = tl.load(addresses + tl.load(which + lane)).to(tl.pointer_type(tl.float32))
    tl.store(out + lane, tl.load(part + lane))
    one = tl.full((B,), 1.0, tl.float32)
    old = tl.atomic_add(part + B + lane, one, sem="relaxed", scope="sys")
    tl.store(out + B + lane, old)


@triton.jit
def update_rows(rows, table, values, D: tl.constexpr, B: tl.constexpr):
    """Rows of a peer's table that indices find, as a dispatch of tokens to experts."""
    row = tl.load(rows + tl.arange(0, B))
    there = table + row[:, None] * D + tl.arange(0, D)[None, :]
    mine = tl.arange(0, B)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(there, tl.load(there) + tl.load(values + mine))


@triton.jit
def wait_for_next(flags, out, n):
    """Each program waits for the one after it, the last one for nobody."""
    pid = tl.program_id(0)
    if pid + 1 < n:
        while tl.load(flags + pid + 1, volatile=True) == 0:
            pass
    tl.store(out + pid, pid)
    tl.atomic_xchg(flags + pid, 1, sem="release", scope="sys")


@triton.jit
def say_and_check(flag, value):
    tl.atomic_add(flag, 1, sem="relaxed", scope="sys")
    tl.device_print("looks at", tl.program_id(0))
    tl.device_assert(tl.load(flag, volatile=True) < value, "too much")


@triton.jit
def patience(flag, out):
    seen = tl.atomic_poll(flag, 1, timeout_ns=5000)
    tl.store(out, seen.to(tl.int32) + 5)


@triton.jit
def all_atomics(x, old):
    """One of each, on elements of a peer's tensor."""
    tl.store(old + 0, tl.atomic_add(x + 0, 5))
    tl.store(old + 1, tl.atomic_max(x + 1, 7))
    tl.store(old + 2, tl.atomic_min(x + 2, -7))
    tl.store(old + 3, tl.atomic_and(x + 3, 6))
    tl.store(old + 4, tl.atomic_or(x + 4, 9))
    tl.store(old + 5, tl.atomic_xor(x + 5, 5))
    tl.store(old + 6, tl.atomic_xchg(x + 6, 4))
    tl.store(old + 7, tl.atomic_cas(x + 7, 3, 8))


@triton.jit
def overtake(data, flag, far, out):
    """Store, and read it back; then what was stored before a relaxed signal need not be there."""
    tl.store(data, 1.0)
    tl.store(out, tl.load(data))
    tl.store(far, 2.0)
    tl.store(out + 1, tl.load(far))
    tl.atomic_xchg(flag, 1, sem="relaxed", scope="sys")


@triton.jit
def count_tries(flag, out, most):
    """Give up after so many looks."""
    tries = 0
    while (tl.load(flag, volatile=True) == 0) & (tries < most):
        tries += 1
    tl.store(out, tries)


@triton.jit
def first_come(counter, out, n):
    """Tiles of all ranks' work from one counter."""
    tile = tl.atomic_add(counter, 1, sem="relaxed", scope="sys")
    while tile < n:
        tl.atomic_add(out + tile, 1, sem="relaxed", scope="sys")
        tile = tl.atomic_add(counter, 1, sem="relaxed", scope="sys")
