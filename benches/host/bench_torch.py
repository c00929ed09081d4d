"""Question: what does it cost to run PyTorch programs on simulated devices?

Per operation: small tensors, one rank, CPU time of an operation over that of plain PyTorch, medians
of batches that alternate with those of the plain one. The tensor-parallel MLP (hidden 1024, ffn
4096, 64 tokens, float32) against the same products and sums in one plain loop. A decoder trained on
a mesh of 4 ranks (``tests/torch_bridge/programs/mesh_training.py``) against four real gloo
processes, wall time, both with their start. A Llama step without data: CPU time and memory.

Needs PyTorch; ``LLAMA_SHAPES`` names a program with ``--layers`` and ``--steps`` for the last one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pytest

from conftest import Goal, measured_in_a_process
from kernbench import RuntimeContext

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
HIDDEN, FFN, TOKENS = 1024, 4096, 64
OPERATIONS = {
    "add": "x + y",
    "add in place": "x.add_(y)",
    "view": "x.view(-1)",
    "sum": "x.sum()",
    "mm 8 x 8": "x @ y",
    "softmax": "torch.softmax(x, -1)",
}

PER_OPERATION = """
import json, sys, torch
from time import process_time
names = json.loads(sys.argv[1])
found = {name: [] for name in names}
places = ("cpu", "cuda")
operands = {place: [torch.ones(8, 8, device=place) for _ in "xy"] for place in places}
def batch(code, x, y, count=500):
    start = process_time()
    for _ in range(count):
        eval(code)
    return (process_time() - start) / count
for name, text in names.items():
    code = compile(text, name, "eval")
    for _ in range(12):
        plain_x = operands["cpu"]
        with torch.utils._python_dispatch._disable_current_modes():
            plain = batch(code, *plain_x)
        found[name].append(batch(code, *operands["cuda"]) - plain)
        torch.cuda.synchronize()
with open(sys.argv[2], "w") as out:
    json.dump(found, out)
"""

TP_MLP = f"""
import json, os, sys, torch
import torch.distributed as dist
from time import process_time
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.randn({TOKENS}, {HIDDEN}, device="cuda")
w1 = torch.randn({HIDDEN}, {FFN} // ranks, device="cuda")
w2 = torch.randn({FFN} // ranks, {HIDDEN}, device="cuda")
seconds = []
for _ in range(12):
    dist.barrier()
    start = process_time()
    for _ in range(3):
        y = torch.relu(x @ w1) @ w2
        dist.all_reduce(y)
    dist.barrier()
    seconds.append((process_time() - start) / 3)
if rank == 0:
    with open(sys.argv[1], "w") as out:
        json.dump(seconds[2:], out)
"""


def simulate(folder: Path, source: str, *args: str, ranks: int = 1) -> None:
    """Run the text of a program on simulated devices in this process."""
    from kernbench.torch_bridge import run_torchrun

    path = folder / "program.py"
    path.write_text(source)
    context = RuntimeContext(machine=f"ahbm:{ranks}", ranks=ranks)
    with context, warnings.catch_warnings():
        warnings.simplefilter("default")
        run_torchrun(context, path, compile(source, str(path), "exec"), args, ranks)


def test_an_operation(tmp_path: Path, goal: Goal) -> None:
    said = tmp_path / "found.json"
    simulate(tmp_path, PER_OPERATION, json.dumps(OPERATIONS), str(said))
    for name, seconds in json.loads(said.read_text()).items():
        goal(f"{name} on a device, over plain torch", 1e6 * statistics.median(seconds), 10, " us")


def plain_loop_seconds(ranks: int) -> list[float]:
    x = torch.randn(TOKENS, HIDDEN)
    w1 = [torch.randn(HIDDEN, FFN // ranks) for _ in range(ranks)]
    w2 = [torch.randn(FFN // ranks, HIDDEN) for _ in range(ranks)]
    seconds = []
    for _ in range(30):
        start = process_time()
        parts = [torch.relu(x @ w1[rank]) @ w2[rank] for rank in range(ranks)]
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        for part in parts:
            part.copy_(total)
        seconds.append(process_time() - start)
    return seconds


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_tp_mlp(tmp_path: Path, ranks: int, goal: Goal) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    said = tmp_path / "found.json"
    simulate(tmp_path, TP_MLP, str(said), ranks=ranks)
    simulated = statistics.median(json.loads(said.read_text()))
    plain = statistics.median(plain_loop_seconds(ranks))
    torch.set_num_threads(before)
    print(f"\n  simulated {simulated * 1e3:.2f} ms, plain loop {plain * 1e3:.2f} ms")
    goal(f"TP MLP in PyTorch, {ranks} ranks, over a plain loop", simulated / plain, 1.3, "x")


def test_training_on_a_mesh_over_real_processes(tmp_path: Path, goal: Goal) -> None:
    program = str(ROOT / "tests/torch_bridge/programs/mesh_training.py")
    environ = os.environ | {"OMP_NUM_THREADS": "1"}

    def seconds(name: str, module: str, *args: str) -> float:
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-m", *module.split(), "--nproc-per-node", "4", *args]
        start = perf_counter()
        subprocess.run(
            [*command, program, str(folder), "cpu" if name == "gloo" else "cuda", "new"],
            check=True,
            capture_output=True,
            env=environ,
        )
        return perf_counter() - start

    simulated = seconds("cuda", "kernbench torchrun", "--machine", "ahbm:4")
    real = seconds("gloo", "torch.distributed.run")
    print(f"\n  simulated {simulated:.1f} s, four processes {real:.1f} s")
    goal("training on a mesh of 4, wall time over gloo", simulated / real, 0.7, "x")


WITHOUT_DATA = """
import sys
import warnings
from pathlib import Path
from kernbench import RuntimeContext
from kernbench.torch_bridge import run_torchrun
path = Path({program!r})
context = RuntimeContext(machine="ahbm:8", ranks=8, data=False)
with context:
    code = compile(path.read_text(), str(path), "exec")
    run_torchrun(context, path, code, tuple({args!r}.split()), 8)
"""
MODELS = {
    "8B": ("--steps 1", 60.0, 2000.0),
    "70B": (
        "--steps 1 --layers 80 --dim 8192 --inter 28672 --heads 64 --kv 8",
        300.0,
        8000.0,
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_llama_step_without_data(model: str, goal: Goal) -> None:
    program = os.environ.get("LLAMA_SHAPES")
    if program is None:
        pytest.skip("LLAMA_SHAPES names no program")
    args, seconds, megabytes = MODELS[model]
    found: dict[str, Any] = measured_in_a_process(WITHOUT_DATA.format(program=program, args=args))
    goal(f"Llama {model} step, 8 ranks, no data, CPU time", found["cpu_s"], seconds, " s")
    goal(f"Llama {model} step, 8 ranks, no data, peak memory", found["peak_mb"], megabytes, " MB")
