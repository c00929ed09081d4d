"""How does all-reduce bandwidth grow with the message, and which algorithm wins where?

Every algorithm on every world size and message size, on the links of ahbm (8 SIPs on a ring; a
smaller world uses the first of them). Columns and formulas are those of nccl-tests: algbw is
message / time, and busbw = algbw * 2 * (n - 1) / n can be held against the bandwidth of a link.

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

import numpy as np

from kernbench.runtime_api import RuntimeContext

RANKS = 8


def run(
    torch: RuntimeContext,
    world_sizes: tuple[int, ...] = (),
    sizes_kib: tuple[int, ...] = (4, 64, 1024, 8192),
    algorithms: tuple[str, ...] = ("ring", "tree", "direct"),
) -> None:
    """Print one line per world size, message size and algorithm.

    Without world sizes, they are the powers of two up to the ranks of the run.
    """
    powers = (1 << power for power in range(1, torch.world_size.bit_length()))
    world_sizes = world_sizes or tuple(powers)
    print("ranks      KiB  algorithm    time us  algbw GB/s  busbw GB/s")
    for ranks in world_sizes:
        for size_kib in sizes_kib:
            for algorithm in algorithms:
                before_ns = collectives_ns(torch)
                torch.multiprocessing.spawn(
                    worker, args=(torch, size_kib * 1024, algorithm), nprocs=ranks
                )
                time_ns = collectives_ns(torch) - before_ns
                algbw = size_kib * 1024 / time_ns if time_ns else 0.0
                busbw = algbw * 2 * (ranks - 1) / ranks
                print(
                    f"{ranks:>5} {size_kib:>8} {algorithm:>10} {time_ns / 1000:>10.2f} "
                    f"{algbw:>11.2f} {busbw:>11.2f}"
                )


def worker(rank: int, torch: RuntimeContext, size_bytes: int, algorithm: str) -> None:
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group()
    ranks = torch.distributed.get_world_size()
    x = torch.full((size_bytes // 4,), rank + 1.0, dtype="float32", name="message")
    torch.distributed.all_reduce(x, algorithm=algorithm)
    if torch.has_data:
        torch.testing.assert_close(x, np.full(size_bytes // 4, sum(range(ranks + 1)), np.float32))


def collectives_ns(torch: RuntimeContext) -> float:
    """Return the simulated time in all-reduces so far, from the last rank's arrival on."""
    return sum(
        item["time_ns"] for item in torch.report()["collectives"] if item["op"] == "all_reduce"
    )
