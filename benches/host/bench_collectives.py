"""Question: what does one all-reduce of 64 MiB over 1 024 and 16 384 ranks cost the simulator?

No data. ``ahbm:1024`` is a ring of 1 024 SIPs; on nodes of eight H100 the collective has two
levels, and is chosen as NCCL would. Each case is a process of its own, so that its CPU
seconds and its peak memory include starting Python and importing kernbench. ASTRA-sim needs 4.9
to 17.6 CPU-s and 0.36 GB for the same collective (source: measured once, on a machine of this
class). The data side is timed in this process: 64 ranks with 64 x 1 024 float32 each.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conftest import Goal, measured_in_a_process
from kernbench.collectives import build
from kernbench.hardware import load_machine
from kernbench.links import Network
from kernbench.replay import run_collective

NUM_RANKS = 1024
NUM_ELEMENTS = 16 * 1024 * 1024

ON_LINKS = f"""
from kernbench.collectives import build
from kernbench.hardware import load_machine
from kernbench.links import Network
network = Network(load_machine("ahbm:{NUM_RANKS}"))
schedule = build("all_reduce", "ring", {NUM_RANKS}, {NUM_ELEMENTS}, 4)
end_ps = max(network.run(schedule, tuple(range({NUM_RANKS})), (0,) * {NUM_RANKS}).ends_ps)
found = {{"simulated_us": end_ps / 1e6}}
"""

WHOLE_RUN = f"""
import kernbench
with kernbench.RuntimeContext(machine="ahbm:{NUM_RANKS}", ranks={NUM_RANKS}, data=False) as torch:
    def worker(rank):
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group()
        torch.distributed.all_reduce(torch.empty({NUM_ELEMENTS}, dtype="f32"))
    torch.multiprocessing.spawn(worker, args=(), nprocs={NUM_RANKS})
    found = {{"simulated_us": torch.report()["time_ns"] / 1e3}}
"""

TWO_LEVELS = f"""
import kernbench
ranks = {{nodes}} * 8
with kernbench.RuntimeContext(machine="h100-sxm:{{nodes}}x8", ranks=ranks, data=False) as torch:
    def worker(rank):
        torch.distributed.init_process_group()
        torch.distributed.all_reduce(torch.empty({NUM_ELEMENTS}, dtype="f32"))
    torch.multiprocessing.spawn(worker, args=(), nprocs=ranks)
    found = {{{{"simulated_us": torch.report()["time_ns"] / 1e3}}}}
"""


@pytest.mark.parametrize(
    ("nodes", "seconds", "megabytes"), [(128, 3, 400), (2048, 30, 1000)], ids=["1024", "16384"]
)
def test_all_reduce_of_two_levels(nodes: int, seconds: float, megabytes: float, goal: Goal) -> None:
    measured = measured_in_a_process(TWO_LEVELS.format(nodes=nodes))
    print(f"\n  simulated {measured['simulated_us']:.1f} us")
    what = f"all-reduce 64 MiB, {nodes * 8} ranks, two levels"
    goal(f"{what}, CPU time", measured["cpu_s"], seconds, " s")
    goal(f"{what}, peak memory", measured["peak_mb"], megabytes, " MB")


@pytest.mark.parametrize("body", [ON_LINKS, WHOLE_RUN], ids=["on_links", "whole_run"])
def test_all_reduce_of_1024_ranks_in_a_process(
    body: str, goal: Goal, request: pytest.FixtureRequest
) -> None:
    measured = measured_in_a_process(body)
    print(f"\n  simulated {measured['simulated_us']:.1f} us")
    what = f"all-reduce 64 MiB, {NUM_RANKS} ranks, {request.node.callspec.id.replace('_', ' ')}"
    goal(f"{what}, CPU time", measured["cpu_s"], 3, " s")
    goal(f"{what}, peak memory", measured["peak_mb"], 400, " MB")


def test_all_reduce_of_1024_ranks_timed_anew(benchmark: BenchmarkFixture) -> None:
    machine = load_machine(f"ahbm:{NUM_RANKS}")
    schedule = build("all_reduce", "ring", NUM_RANKS, NUM_ELEMENTS, 4)
    sips = tuple(range(NUM_RANKS))
    benchmark(lambda: Network(machine).run(schedule, sips, (0,) * NUM_RANKS))


def test_all_reduce_of_1024_ranks_timed_again(benchmark: BenchmarkFixture) -> None:
    """What layer 80 costs."""
    network = Network(load_machine(f"ahbm:{NUM_RANKS}"))
    schedule = build("all_reduce", "ring", NUM_RANKS, NUM_ELEMENTS, 4)
    sips = tuple(range(NUM_RANKS))
    end = network.run(schedule, sips, (0,) * NUM_RANKS).ends_ps[0]

    def again() -> None:
        nonlocal end
        end = network.run(schedule, sips, (end,) * NUM_RANKS).ends_ps[0]

    benchmark(again)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("num_ranks", [2, 8, 64])
def test_all_reduce_of_data(
    benchmark: BenchmarkFixture, num_ranks: int, dtype: type[np.floating]
) -> None:
    works = [np.ones(64 * 1024, dtype) for _ in range(num_ranks)]
    schedule = build("all_reduce", "ring", num_ranks, 64 * 1024, works[0].itemsize)
    benchmark(lambda: run_collective(schedule, "max", works))
