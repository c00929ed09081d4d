"""Question: how fast do ranks switch, and how many fit in one process?

Device: ``ahbm`` with as many SIPs as ranks, without data. Each rank waits for timers of its own,
so that every ``wait`` is a switch to main and back. CPU time, the best of three.
"""

from __future__ import annotations

from time import process_time

import pytest

from conftest import Goal, measured_in_a_process
from kernbench import RuntimeContext


@pytest.mark.parametrize(("ranks", "waits"), [(8, 25_000), (64, 3_000)])
def test_rank_switches(ranks: int, waits: int, goal: Goal) -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        wait, timer = torch.wait, torch.run.simulation.timer
        for _ in range(waits):
            wait(timer(1000))

    def seconds() -> float:
        start = process_time()
        with RuntimeContext(machine=f"ahbm:{ranks}", data=False) as torch:
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=ranks)
        return process_time() - start

    rate = ranks * waits / min(seconds() for _ in range(3))
    goal(f"rank switches through wait, {ranks} ranks", rate, 400_000, "/s", at_least=True)


MANY = """
from kernbench import RuntimeContext
ended = []
with RuntimeContext(machine="ahbm:8192", data=False) as torch:
    def worker(rank):
        for _ in range(20):
            torch.wait(torch.run.simulation.timer(1000))
        ended.append(rank)
    torch.multiprocessing.spawn(worker, nprocs=8192)
found = {"ranks": len(ended)}
"""


def test_many_ranks_in_one_process(goal: Goal) -> None:
    measured = measured_in_a_process(MANY)
    print(f"\n  {measured['cpu_s']:.1f} CPU-s, peak {measured['peak_mb']:.0f} MB")
    goal("ranks in one process", measured["ranks"], 8192, "", at_least=True)
