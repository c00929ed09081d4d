"""Question: what does it cost to run PyTorch programs on simulated devices?

Per operation: small tensors, one rank, CPU time of an operation over that of plain PyTorch, in
batches that alternate with those of the plain one and of a dispatch mode that does nothing; the
time until the operations are on the log is part of it. Whoever else uses the machine makes code
slower, CPU time too: the median is that of the tenth of the batches beside which the others took
least. The tensor-parallel MLP (hidden 1024, ffn
4096, 64 tokens, float32) against the same products and sums on the same tensors in one plain loop,
taken in turns. A decoder trained on a mesh of 4 ranks (``tests/torch_bridge/programs``) against
four real gloo processes, wall time, both with their start and their end; beside it their CPU time.
A Llama step without data, steps of 1,024 ranks of
which one runs, and two steps of a small model on 1,024 ranks that all run: CPU time and memory.

Needs PyTorch. ``LLAMA_TRAINING`` names a program for 4 ranks that says ``cuda`` and ``nccl``, to be
trained beside the decoder; ``LLAMA_SHAPES`` one with ``--layers`` and ``--steps`` for the last row.
"""

from __future__ import annotations

import json
import os
import resource
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
process_time = torch._process_time_of_the_bench
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
class Nothing(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
names = json.loads(sys.argv[1])
found = {name: [] for name in names}
places = ("cpu", "cuda")
operands = {place: [torch.ones(8, 8, device=place) for _ in "xy"] for place in places}
def batch(code, x, y, count=300):
    start = process_time()
    for _ in range(count):
        eval(code)
    return (process_time() - start) / count
for name, text in names.items():
    code = compile(text, name, "eval")
    for _ in range(120):
        with _disable_current_modes():
            plain = batch(code, *operands["cpu"])
            with Nothing():
                mode = batch(code, *operands["cpu"])
        start = process_time()
        batch(code, *operands["cuda"])
        torch.cuda.synchronize()
        found[name].append(((process_time() - start) / 300, mode, plain))
with open(sys.argv[2], "w") as out:
    json.dump(found, out)
"""

TP_MLP = f"""
import json, os, sys, torch
import torch.distributed as dist
process_time = torch._process_time_of_the_bench
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.randn({TOKENS}, {HIDDEN}, device="cuda")
w1 = torch.randn({HIDDEN}, {FFN} // ranks, device="cuda")
w2 = torch.randn({FFN} // ranks, {HIDDEN}, device="cuda")
# Libraries are shared by the ranks of a simulation.
everybody = vars(torch).setdefault("_of_the_bench", {{}})
everybody[rank] = x, w1, w2
def plain():
    parts = [torch.relu(x @ w1) @ w2 for x, w1, w2 in everybody.values()]
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    for part in parts:
        part.copy_(total)
seconds = []
for _ in range(12):
    dist.barrier()
    start = process_time()
    for _ in range(3):
        y = torch.relu(x @ w1) @ w2
        dist.all_reduce(y)
    dist.barrier()
    simulated = process_time() - start
    if rank == 0:
        assert len(everybody) == ranks
        with torch.utils._python_dispatch._disable_current_modes():
            start = process_time()
            for _ in range(3):
                plain()
        seconds.append((simulated / 3, (process_time() - start) / 3))
if rank == 0:
    with open(sys.argv[1], "w") as out:
        json.dump(seconds[2:], out)
"""


def simulate(folder: Path, source: str, *args: str, ranks: int = 1) -> None:
    """Run the text of a program on simulated devices in this process."""
    from kernbench.torch_bridge import run_torchrun

    path = folder / "program.py"
    path.write_text(source)
    # A program that imports the clock finds that of the modeled host. Libraries are shared.
    vars(torch)["_process_time_of_the_bench"] = process_time
    context = RuntimeContext(machine=f"ahbm:{ranks}", ranks=ranks)
    with context, warnings.catch_warnings():
        warnings.simplefilter("default")
        run_torchrun(context, path, compile(source, str(path), "exec"), [str(path), *args], ranks)
    # What a library has when a run begins each rank of it changes for itself.
    vars(torch).pop("_of_the_bench", None)


def test_an_operation(tmp_path: Path, goal: Goal) -> None:
    said = tmp_path / "found.json"
    simulate(tmp_path, PER_OPERATION, json.dumps(OPERATIONS), str(said))
    for name, seconds in json.loads(said.read_text()).items():
        quiet = sorted(seconds, key=lambda item: item[1] + item[2])[: len(seconds) // 10]
        ours, mode = (
            1e6 * statistics.median(entry[place] - entry[2] for entry in quiet) for place in (0, 1)
        )
        print(f"\n  a dispatch mode that does nothing: {mode:.1f} us")
        goal(f"{name} on a device, over plain torch", ours, 10, " us")


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_tp_mlp(tmp_path: Path, ranks: int, goal: Goal) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    said = tmp_path / "found.json"
    simulate(tmp_path, TP_MLP, str(said), ranks=ranks)
    simulated, plain = map(statistics.median, zip(*json.loads(said.read_text()), strict=True))
    torch.set_num_threads(before)
    print(f"\n  simulated {simulated * 1e3:.2f} ms, plain loop {plain * 1e3:.2f} ms")
    most = {2: 1.25, 8: 1.25, 64: 1.6}[ranks]
    goal(f"TP MLP in PyTorch, {ranks} ranks, over a plain loop", simulated / plain, most, "x")


def on_gloo(program: str) -> str:
    """Return the text of a program for devices, for processes without any."""
    for device, host in (
        ('"nccl"', '"gloo"'),
        ('f"cuda:{local_rank}"', '"cpu"'),
        ('"cuda"', '"cpu"'),
        ("torch.cuda.nccl.version()", "None"),
    ):
        program = program.replace(device, host)
    return program


def over_real_processes(
    folder: Path, programs: dict[str, list[str]], what: str, goal: Goal
) -> None:
    """Run a program on 4 simulated ranks and in 4 processes, and compare."""
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    # As where it is installed.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    prepare = [sys.executable, "-c", "import kernbench.torch_bridge.front.programs"]
    subprocess.run(prepare, check=True, env=environ)

    def seconds(name: str, module: str) -> tuple[float, float]:
        where = folder / name
        where.mkdir()
        command = [sys.executable, "-m", *module.split(), "--nproc-per-node", "4", *programs[name]]
        start, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=environ, cwd=where)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return perf_counter() - start, cpu_s

    simulated = seconds("cuda", "kernbench torchrun --machine ahbm:4")
    real = seconds("gloo", "torch.distributed.run")
    for kind, ours, theirs in zip(("wall", "CPU"), simulated, real, strict=True):
        print(f"\n  {kind} time: simulated {ours:.1f} s, four processes {theirs:.1f} s")
    goal(f"{what}, wall time over gloo", simulated[0] / real[0], 0.7, "x")
    # On two cores that nobody else uses, four processes take half of their CPU time.
    goal(f"{what}, CPU time over gloo", simulated[1] / real[1], 0.35, "x")


def test_training_on_a_mesh_over_real_processes(tmp_path: Path, goal: Goal) -> None:
    program = str(ROOT / "tests/torch_bridge/programs/mesh_training.py")
    programs = {
        name: [program, str(tmp_path / name), place, "new"]
        for name, place in (("cuda", "cuda"), ("gloo", "cpu"))
    }
    over_real_processes(tmp_path, programs, "training on a mesh of 4", goal)


def test_llama_over_real_processes(tmp_path: Path, goal: Goal) -> None:
    program = os.environ.get("LLAMA_TRAINING")
    if program is None:
        pytest.skip("LLAMA_TRAINING names no program")
    real = tmp_path / "on_gloo.py"
    real.write_text(on_gloo(Path(program).read_text()))
    programs = {"cuda": [str(Path(program).resolve())], "gloo": [str(real)]}
    over_real_processes(tmp_path, programs, "Llama, 4 ranks", goal)


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
    run_torchrun(context, path, code, [str(path), *{args!r}.split()], 8)
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
    measured: dict[str, Any] = measured_in_a_process(
        WITHOUT_DATA.format(program=program, args=args)
    )
    goal(f"Llama {model} step, 8 ranks, no data, CPU time", measured["cpu_s"], seconds, " s")
    goal(
        f"Llama {model} step, 8 ranks, no data, peak memory", measured["peak_mb"], megabytes, " MB"
    )


MANY_RANKS = 1024
ON_NODES = """
from kernbench.cli.app import app
options = "--nnodes {nodes} --nproc-per-node 8 --machine h100-sxm --no-data {more}"
app(["torchrun", *options.split(), {path!r}], standalone_mode=False)
"""
LAYERS = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size() // 8, 8), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = nn.Sequential(*[
        nn.TransformerEncoderLayer(4096, 32, 14336, norm_first=True, batch_first=True)
        for _ in range(32)
    ])
plan = {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()}
for layer in model:
    parallelize_module(layer, mesh["tp"], plan)
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(1, 2048, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""


def measured_on_nodes(program: str, more: str, folder: Path) -> dict[str, Any]:
    path = folder / "program.py"
    path.write_text(program)
    script = ON_NODES.format(path=str(path), nodes=MANY_RANKS // 8, more=more)
    measured: dict[str, Any] = measured_in_a_process(script)
    return measured


def test_a_folded_step_of_1024_ranks(tmp_path: Path, goal: Goal) -> None:
    measured = measured_on_nodes(LAYERS, "--fold", tmp_path)
    what = f"{MANY_RANKS} ranks of 5.9B parameters, FSDP2 and TP, folded, two steps"
    goal(f"{what}, CPU time", measured["cpu_s"], 90, " s")
    goal(f"{what}, peak memory", measured["peak_mb"], 2000, " MB")


SMALL_MODEL = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layers = [nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0) for _ in range(2)]
model = DistributedDataParallel(nn.Sequential(*layers).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(4, 128, 256, device="cuda")).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
"""


def test_a_small_model_on_1024_ranks_that_all_run(tmp_path: Path, goal: Goal) -> None:
    measured = measured_on_nodes(SMALL_MODEL, "", tmp_path)
    what = f"{MANY_RANKS} PyTorch ranks, none folded, two steps of a small model, no data"
    goal(f"{what}, CPU time", measured["cpu_s"], 600, " s")
    goal(f"{what}, peak memory", measured["peak_mb"], 8000, " MB")
