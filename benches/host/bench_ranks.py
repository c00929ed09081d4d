"""How fast do ranks switch, and how many fit in one process?

Device: ``ahbm`` with as many SIPs as ranks, without data. To reach: 300 000 switches/s through
``ctx.wait`` and 8 192 ranks in one process; a warm launch with its timing memoised costs at most
100 us of kernbench's own (Triton's own share comes on top). Run with
``pytest benches/host/bench_ranks.py``; the time per switch is the time shown divided by the
switches, which the name of the group gives.
"""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from kernbench import RuntimeContext


@triton.jit
def touch(x, out, a, b, c, d, e, f, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask), mask=mask)


@pytest.mark.parametrize(("ranks", "waits"), [(8, 25_000), (64, 3_000), (8_192, 20)])
def test_rank_switches(benchmark, ranks: int, waits: int) -> None:
    benchmark.group = f"{ranks} ranks, {ranks * waits:,} switches"

    def worker(rank: int, torch: RuntimeContext) -> None:
        wait, timer = torch.wait, torch.simulation.timer
        for _ in range(waits):
            wait(timer(1000))

    def run() -> None:
        with RuntimeContext(machine=f"ahbm:{ranks}", data=False) as torch:
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=ranks)

    benchmark.pedantic(run, rounds=3)


@pytest.mark.parametrize("way", ["kernel[grid](...)", "without Triton"])
def test_warm_launches(benchmark, way: str) -> None:
    launches = 2_000
    benchmark.group = f"{launches:,} warm launches"
    with RuntimeContext(data=False) as torch:
        x, out = torch.empty(1000), torch.empty(1000)
        touch[(4,)](x, out, 2, 3, 4, 5, 6, 7, 1000, BLOCK=256)
        (binary,) = torch.launcher._entries
        params = len(binary.signature)

        def through_triton() -> None:
            for _ in range(launches):
                touch[(4,)](x, out, 2, 3, 4, 5, 6, 7, 1000, BLOCK=256)

        def ours() -> None:
            args = (x, out, 2, 3, 4, 5, 6, 7, 1000)[:params]
            for _ in range(launches):
                torch.launcher.launch(binary, (4, 1, 1), args)

        benchmark.pedantic(through_triton if way.startswith("kernel") else ours, rounds=3)
