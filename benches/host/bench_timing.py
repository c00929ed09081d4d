"""Question: what does the timing phase cost, and what does its cost grow with?

No data. Each case is a process of its own, so that nothing is compiled or remembered; a first
matrix product of another size has Triton imported and kernbench's modules loaded. CPU seconds. What
Triton itself takes of a cold launch (tracing Python to TTIR) is told apart by timing its compiler.
Compared with: LLMCompass, 38 s for a 4096^3 GEMM and about 500 CPU-s for a layer of GPT-3 175B
(source: measured once, on a machine of this class). The first repeat of a launch still finds the
processor's caches cold for the code that it runs; the median of 50 does not.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conftest import Goal, measured_in_a_process

GEMM = """
from statistics import median
from time import process_time
import triton.compiler.compiler as compiler
import kernbench
from kernbench import ops
in_triton = 0.0
make_ir = compiler.ASTSource.make_ir
def timed(*args, **named):
    global in_triton
    start = process_time()
    made = make_ir(*args, **named)
    in_triton += process_time() - start
    return made
compiler.ASTSource.make_ir = timed
with kernbench.RuntimeContext(machine="{machine}", data=False) as torch:
    small = torch.empty((256, 256), dtype="f32")
    ops.matmul(small, small)
    torch.ahbm.synchronize()
    a = torch.empty((4096, 4096), dtype="f16")
    found, in_triton = dict(), 0.0
    taken = []
    for _ in range(51):
        start = process_time()
        ops.matmul(a, a)
        torch.ahbm.synchronize()
        taken.append(process_time() - start)
    found["cold_s"], found["first_s"], found["again_s"] = *taken[:2], median(taken[1:])
    found["triton_s"] = in_triton
"""

TRANSFORMER = """
from time import process_time
import kernbench
from kernbench import ops, tp
with kernbench.RuntimeContext(machine="{machine}:{ranks}", ranks={ranks}, data=False) as torch:
    seconds = []
    def worker(rank):
        torch.distributed.init_process_group()
        tp.initialize_model_parallel({ranks})
        config = tp.TransformerConfig(
            hidden_size={hidden}, num_heads={heads}, intermediate_size=4 * {hidden},
            vocab_size=51200, num_layers={layers}, tp_size={ranks}, dtype="f16", gated=False,
            bias=True,
        )
        attention = tp.TrainingAttention(tp.TransformerLayer.heads(config), {batch})
        layer = tp.TransformerLayer(config, attention, norm="layer")
        x = torch.empty(({batch} * {tokens}, {hidden}), dtype="f16")
        torch.distributed.barrier()
        if rank == 0:
            start = process_time()
        for _ in range({layers}):
            x = layer(x)
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        if rank == 0:
            seconds.append(process_time() - start)
    torch.multiprocessing.spawn(worker, nprocs={ranks})
    found = dict(layers_s=seconds[0], simulated_us=torch.report()["time_ns"] / 1e3)
"""


@pytest.fixture(autouse=True)
def _nothing_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled before would not be cold."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


GPT3 = {"hidden": 12288, "heads": 96, "batch": 8, "tokens": 2048}
SMALLER = {"hidden": 8192, "heads": 64, "batch": 4, "tokens": 2048}


@pytest.mark.parametrize("machine", ["a100-sxm-80g", "ahbm"])
def test_gemm_of_4096(machine: str, goal: Goal) -> None:
    measured = measured_in_a_process(GEMM.format(machine=machine))
    ours = measured["cold_s"] - measured["triton_s"]
    print(
        f"\n  cold {measured['cold_s']:.3f} s, of which Triton's tracing "
        f"{measured['triton_s']:.3f} s"
    )
    goal(f"f16 GEMM 4096^3 on {machine}, cold, without Triton's own", ours, 0.5, " s")
    goal(f"f16 GEMM 4096^3 on {machine}, again", measured["first_s"] * 1e6, 500, " us")
    what = f"f16 GEMM 4096^3 on {machine}, again, median of 50"
    goal(what, measured["again_s"] * 1e6, 500, " us")


def test_a_layer_of_gpt3(goal: Goal) -> None:
    measured = measured_in_a_process(
        TRANSFORMER.format(machine="a100-sxm-80g", ranks=4, layers=1, **GPT3)
    )
    print(
        f"\n  simulated {measured['simulated_us']:.0f} us, "
        f"{measured['cpu_s']:.2f} s with all imports"
    )
    what = "GPT-3 175B layer, TP4, prefill 8 x 2048, cold, Triton's tracing included"
    goal(what, measured["layers_s"], 10, " s")


def test_cost_by_layers_and_ranks(goal: Goal) -> None:
    """What grows with neither is distinct work; what does are calls, some 20 per layer and rank."""
    costs = {}
    for ranks, layers in [(4, number) for number in (1, 8, 32, 96)] + [(1, 8), (16, 8), (64, 8)]:
        body = TRANSFORMER.format(machine="ahbm", ranks=ranks, layers=layers, **SMALLER)
        costs[ranks, layers] = measured_in_a_process(body)["layers_s"]
        print(f"\n  {ranks} ranks, {layers} layers: {costs[ranks, layers]:.2f} s")
    goal("96 layers over 1, 4 ranks", costs[4, 96] / costs[4, 1], 4, "x")
    goal("64 ranks over 1, 8 layers", costs[64, 8] / costs[1, 8], 8, "x")


EXCHANGE = """
from kernbench.hardware import load_machine
from kernbench.links import Asked, Network
network = Network(load_machine("{machine}:1024"))
asked, sips = Asked("{op}", 1024, {elements}, 4), tuple(range(1024))
choice = network.selector.choose(asked, sips)
placed = network.run(choice.build(asked), sips, (0,) * 1024, choice.protocol)
found = {{"simulated_us": max(placed.ends_ps) / 1e6}}
"""


@pytest.mark.parametrize("op", ["all_to_all", "all_reduce"])
@pytest.mark.parametrize("machine", ["ahbm", "ahbm-mesh"])
def test_a_choice_for_1024_ranks(machine: str, op: str, goal: Goal) -> None:
    """On a ring and on a mesh of 32 x 32; 64 MiB per rank."""
    measured = measured_in_a_process(EXCHANGE.format(machine=machine, op=op, elements=16 * 2**20))
    print(f"\n  simulated {measured['simulated_us']:.1f} us")
    goal(f"{op} chosen and timed, 1024 ranks of {machine}, CPU time", measured["cpu_s"], 10, " s")
    goal("the same, peak memory", measured["peak_mb"], 1000, " MB")


GEMM_ROWS = """
from time import process_time
from kernbench.errors import KernbenchError
from kernbench.accuracy.rows.reference import read_rows, sampled
from validation.predictors.registry import make_predictor
rows = sampled(read_rows(["{path}"]), {{"gemm": {every}}})
predictor = make_predictor("gemm")
start = process_time()
for row in rows:
    try:
        predictor.predict(row)
    except KernbenchError:
        pass  # of a device that no machine describes
found = dict(rows=len(rows), rows_s=process_time() - start)
"""


@pytest.mark.skipif("GEMM_ROWS" not in os.environ, reason="GEMM_ROWS names no file of GEMM rows")
def test_rate_of_gemm_rows(goal: Goal) -> None:
    """Every 20th shape of a file with measured rows, as ``kernbench validate`` answers them."""
    path, every = os.environ["GEMM_ROWS"], int(os.environ.get("GEMM_ROWS_EVERY", "20"))
    measured = measured_in_a_process(GEMM_ROWS.format(path=path, every=every))
    rate = measured["rows"] / measured["rows_s"]
    print(f"\n  {measured['rows']:.0f} rows in {measured['rows_s']:.1f} s")
    goal("GEMM rows answered per CPU-s (7,621 in 5 minutes on 2 cores)", rate, 12.7, "/s", True)
