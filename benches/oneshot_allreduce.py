"""When does an all-reduce inside a kernel beat the ring of the library?

Two kernels on symmetric memory, where every rank can load and store the tensors of all ranks:

- ``one_shot``: each rank loads all tensors and adds them up. Every byte crosses the links to all
  ranks, but nobody waits for a sum: the least latency.
- ``two_shot``: each rank adds up its share of all tensors and stores the sum into all of them.
  The links carry what a ring's do, in two steps instead of ``2 (ranks - 1)``.

The table has the modeled time of both and of ``all_reduce(algorithm="ring")``, from the last rank's
start to the last rank's end. The machine's ring has the costs of NCCL, which take most of its time
while messages are small. Numbers are checked against numpy, to the bit.
"""

from typing import Literal

import numpy as np
import triton
import triton.language as tl

from kernbench.dtypes import as_dtype
from kernbench.runtime_api import RuntimeContext

RANKS = 8
MACHINE = "h100-sxm"
BLOCK = 4096


@triton.jit
def meet(signals, rank, WORLD: tl.constexpr, LANES: tl.constexpr):
    """Wait for this very program on every rank; what they stored before can be loaded after.

    Every rank counts in its own memory who has come. A signal is a ``release``: it is there after
    all that its program has stored. Looking at the count is an ``acquire``: no later load is early.
    """
    lane = tl.arange(0, LANES)
    everyone = lane < WORLD
    counters = tl.load(signals + lane, everyone, other=0).to(tl.pointer_type(tl.int32))
    tl.atomic_add(counters + tl.program_id(0), 1, everyone, sem="release", scope="sys")
    mine = tl.load(signals + rank).to(tl.pointer_type(tl.int32)) + tl.program_id(0)
    while tl.atomic_add(mine, 0, sem="acquire", scope="sys") < WORLD:
        pass
    # Whoever is ahead may have come for the next time already: take off, do not clear.
    tl.atomic_add(mine, -WORLD, sem="relaxed", scope="sys")


@triton.jit
def one_shot(
    parts, out, signals, rank, n, WORLD: tl.constexpr, LANES: tl.constexpr, B: tl.constexpr
):
    """``parts[r]`` is the tensor of rank ``r``; ``out`` is the rank's own."""
    meet(signals, rank, WORLD, LANES)
    for tile in range(tl.program_id(0), tl.cdiv(n, B), tl.num_programs(0)):
        at = tile * B + tl.arange(0, B)
        total = tl.zeros((B,), tl.float32)
        for peer in tl.static_range(WORLD):
            total += tl.load(parts[peer] + at, at < n, other=0).to(tl.float32)
        tl.store(out + at, total, at < n)
    # Nobody may write its tensor again before all have read it.
    meet(signals, rank, WORLD, LANES)


@triton.jit
def two_shot(
    parts, out, signals, rank, n, WORLD: tl.constexpr, LANES: tl.constexpr, B: tl.constexpr
):
    """The sums end in ``parts``: rank ``r`` makes and hands out the ``r``-th share of them."""
    share = tl.cdiv(n, WORLD)
    end = tl.minimum((rank + 1) * share, n)
    meet(signals, rank, WORLD, LANES)
    for tile in range(tl.program_id(0), tl.cdiv(share, B), tl.num_programs(0)):
        at = rank * share + tile * B + tl.arange(0, B)
        total = tl.zeros((B,), tl.float32)
        for peer in tl.static_range(WORLD):
            total += tl.load(parts[peer] + at, at < end, other=0).to(tl.float32)
        for peer in tl.static_range(WORLD):
            tl.store(parts[peer] + at, total, at < end)
    meet(signals, rank, WORLD, LANES)


KERNELS = {"one_shot": one_shot, "two_shot": two_shot}


def run(
    torch: RuntimeContext,
    sizes_kib: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096),
    dtype: Literal["float16", "bfloat16", "float32"] = "float32",
    variants: tuple[str, ...] = ("one_shot", "two_shot"),
) -> None:
    """Print a line per message size: the time of every way, and which is the fastest."""
    ways = (*variants, "ring")
    ranks = torch.world_size
    print(f"all_reduce of {dtype} on {ranks} ranks of {torch.machine.name}, modeled us")
    print("     KiB" + "".join(f"{way:>11}" for way in ways) + "  fastest")
    for size_kib in sizes_kib:
        before = len(torch.op_log)
        torch.multiprocessing.spawn(
            worker, args=(torch, size_kib * 1024, dtype, variants), nprocs=ranks
        )
        times_us = {way: time_us(torch, way, before) for way in ways}
        cells = "".join(f"{times_us[way]:>11.2f}" for way in ways)
        print(f"{size_kib:>8}{cells}  {min(ways, key=times_us.__getitem__)}")


def worker(rank, torch, size_bytes, dtype, variants):
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group()
    world = torch.distributed.get_world_size()
    n = size_bytes // as_dtype(dtype).itemsize

    # What a rank shares: the tensor that it adds, and counters for the programs' signals.
    x = torch.distributed.symmetric_memory.empty(n, dtype=dtype, name="message")
    shared = torch.distributed.symmetric_memory.rendezvous(x)
    parts = tuple(shared.get_buffer(peer, (n,), dtype) for peer in range(world))
    signals = shared.signal_pad_ptrs_dev

    # Small whole numbers: their sums are exact in every element type.
    values = [np.random.default_rng(peer).integers(-8, 9, n) for peer in range(world)]
    out = torch.empty(n, dtype=dtype)
    lanes = triton.next_power_of_2(world)
    # All programs of a rank are on its PEs at the same time, so that each meets its like.
    grid = min(triton.cdiv(n, BLOCK), torch.machine.sip.num_pes)
    for way in (*variants, "ring"):
        x.copy_(values[rank])
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        if way == "ring":
            torch.distributed.all_reduce(x, algorithm="ring")
        else:
            kernel, rest = KERNELS[way], (signals, rank, n, world, lanes, BLOCK)
            torch.launch(way, kernel, parts, out, *rest, grid=grid)
        torch.testing.assert_close(out if way == "one_shot" else x, sum(values), rtol=0, atol=0)


def time_us(torch, way, before):
    """Return the time from the last rank's start to the last rank's end."""
    name = "all_reduce" if way == "ring" else way
    instances = [
        instance for instance in torch.op_log.instances[before:] if instance.template.name == name
    ]
    start_ps = max(max(item.starts_ps) for item in instances)
    return (max(max(item.ends_ps) for item in instances) - start_ps) / 1e6
