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
