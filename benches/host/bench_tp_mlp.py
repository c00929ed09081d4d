"""Question: what does simulating cost over the numpy work that a program contains anyway?

A two-layer tensor-parallel MLP (hidden 1024, ffn 4096, 64 tokens, float32) with data, forwards
only, against the same matrix products, activation and sums in a plain Python loop. The ratio is
taken in one run, in CPU time, medians; BLAS is pinned to one thread by the Makefile. Without data:
80 layers on 64 ranks in a process of its own.
"""

from __future__ import annotations

import statistics
from time import process_time

import numpy as np
import pytest

import kernbench
from conftest import Goal, measured_in_a_process
from kernbench import ops
from kernbench.tp import ColumnParallelLinear, RowParallelLinear, initialize_model_parallel

HIDDEN, FFN, TOKENS = 1024, 4096, 64
MANY, LAYERS = 64, 80
ITERATIONS = 5
REPETITIONS = 7


def plain_loop_seconds(ranks: int) -> list[float]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((TOKENS, HIDDEN), dtype=np.float32)
    w1 = [rng.standard_normal((HIDDEN, FFN // ranks), dtype=np.float32) for _ in range(ranks)]
    w2 = [rng.standard_normal((FFN // ranks, HIDDEN), dtype=np.float32) for _ in range(ranks)]
    out = [np.empty((TOKENS, HIDDEN), dtype=np.float32) for _ in range(ranks)]
    seconds = []
    for _ in range(ITERATIONS * REPETITIONS):
        start = process_time()
        for rank in range(ranks):
            np.matmul(np.maximum(x @ w1[rank], 0), w2[rank], out=out[rank])
        total = out[0].copy()
        for rank in range(1, ranks):
            total += out[rank]
        for rank in range(ranks):
            out[rank][...] = total
        seconds.append(process_time() - start)
    return seconds


def simulated_seconds(ranks: int) -> list[float]:
    seconds: list[float] = []
    with kernbench.RuntimeContext(machine=f"ahbm:{ranks}", ranks=ranks, data=True) as torch:

        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            initialize_model_parallel(ranks)
            rng = np.random.default_rng(rank)
            x = torch.from_numpy(rng.standard_normal((TOKENS, HIDDEN), dtype=np.float32))
            fc1 = ColumnParallelLinear(HIDDEN, FFN, dtype="f32")
            fc2 = RowParallelLinear(FFN, HIDDEN, dtype="f32")
            for layer in (fc1, fc2):
                local = rng.standard_normal(layer.weight.shape, dtype=np.float32)
                layer.weight.copy_(torch.from_numpy(local))
            for repetition in range(REPETITIONS + 1):
                torch.distributed.barrier()
                if rank == 0:
                    start = process_time()
                for _ in range(ITERATIONS):
                    y = fc2(ops.relu(fc1(x)))
                torch.distributed.barrier()
                if rank == 0:
                    y.numpy()  # replays what all ranks did
                    if repetition:  # the first one compiles and fills the memos
                        seconds.append((process_time() - start) / ITERATIONS)

        torch.multiprocessing.spawn(worker, nprocs=ranks)
    return seconds


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_tp_mlp_with_data(ranks: int, goal: Goal) -> None:
    simulated = statistics.median(simulated_seconds(ranks))
    plain = statistics.median(plain_loop_seconds(ranks))
    print(f"\n  simulated {simulated * 1e3:.2f} ms, plain loop {plain * 1e3:.2f} ms")
    most = {2: 1.3, 8: 1.3, 64: 1.5}[ranks]
    goal(f"TP MLP with data, {ranks} ranks, over a plain loop", simulated / plain, most, "x")


WITHOUT_DATA = f"""
from time import process_time
start = process_time()
import kernbench
from kernbench import ops
from kernbench.tp import ColumnParallelLinear, RowParallelLinear, initialize_model_parallel
with kernbench.RuntimeContext(machine="ahbm:{MANY}", ranks={MANY}, data=False) as torch:
    def worker(rank):
        torch.distributed.init_process_group()
        initialize_model_parallel({MANY})
        x = torch.zeros(({TOKENS}, {HIDDEN}), dtype="f16")
        for _ in range({LAYERS}):
            fc1 = ColumnParallelLinear({HIDDEN}, {FFN})
            fc2 = RowParallelLinear({FFN}, {HIDDEN})
            x = fc2(ops.gelu(fc1(x)))
    torch.multiprocessing.spawn(worker, nprocs={MANY})
"""


def test_tp_mlp_of_80_layers_on_64_ranks_without_data(goal: Goal) -> None:
    measured = measured_in_a_process(WITHOUT_DATA)
    what = f"TP MLP, {LAYERS} layers, {MANY} ranks, no data"
    goal(f"{what}, CPU time", measured["cpu_s"], 10, " s")
    goal(f"{what}, peak memory", measured["peak_mb"], 1000, " MB")
