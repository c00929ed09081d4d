"""Programs without tensor data: shapes, time and memory are those of a run with data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.hardware import machine_text  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.dispatch.shapes import Shapes  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, *, data: bool = False, nprocs: int = 1) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text("import torch\nimport torch.distributed as dist\n" + source)
    return simulated(path, data=data, nprocs=nprocs)


@pytest.mark.adr("0066-D1")
def test_tensors_of_devices_have_no_memory_on_this_machine(tmp_path: Path) -> None:
    source = """
x = torch.zeros(1 << 20, 1 << 20, device="cuda", dtype=torch.bfloat16)  # 2 TiB
y = (x[: 1 << 10] @ x + 1).relu().sum(-1)
assert y.device == x.device == torch.device("cuda", 0) and y.shape == (1 << 10,)
assert y.untyped_storage().data_ptr() == 0 < y.data_ptr() and not x.is_meta and x.is_cuda
"""
    machine = tmp_path / "large.yaml"
    machine.write_text(re.sub(r"hbm_gib: [\d.]+", "hbm_gib: 4096", machine_text("ahbm")[0]))
    path = tmp_path / "program.py"
    path.write_text("import torch\n" + source)
    simulated(path, data=False, machine=str(machine))


TRAINING = """
import torch.nn as nn
torch.manual_seed(0)
device = "cuda"
model = nn.Sequential(nn.Embedding(32, 16), nn.LayerNorm(16), nn.Linear(16, 32)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(2):
    tokens = torch.randint(32, (4, 8), device=device)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.adr("0066-D1")
def test_a_training_step_has_the_operations_and_the_time_of_one_with_data(tmp_path: Path) -> None:
    def operations(data: bool) -> list[tuple[str, int]]:
        log = run(tmp_path, TRAINING, data=data).op_log
        return [(each.template.name, each.starts_ps[0]) for each in log.instances]

    assert operations(data=False) == operations(data=True)


READS = """
import io, torch
x = torch.ones(4, 8, device="cuda") * 2
def read(how):
    torch.cuda.synchronize()
    with torch.profiler.record_function(how):
        return eval(how)
hows = [
    "x.tolist()", "x[1:3].tolist()", "x.t().tolist()", "x[0, 0].tolist()", "x[:0].tolist()",
    "x.long().tolist()", "x.sum().item()", "bool(x.any())", "float(x[0, 0])", "int(x[0, 0])",
    "x.cpu()", "x.to('cpu')", "x.cpu().numpy()", "x.numpy(force=True)", "x.new_tensor([x[0, 0]])",
    "torch.empty(4, 8).copy_(x)",
    "torch.equal(x, x)", "torch.allclose(x, x)", "torch.unique(x)", "x[x > 0]", "f'{x.sum():.1f}'",
    "print(x)", "repr(x.sum())", "torch.save({'a': x, 'b': x[1]}, io.BytesIO())",
    "torch.tensor([x.sum(), x.max()])", "list(range(9))[x.sum().long() * 0]",
    "torch.testing.assert_close(x, x)", "torch.save(torch.nn.Linear(4, 4).cuda(), io.BytesIO())",
]
for how in hows:
    read(how)
"""


@pytest.mark.adr("0066-D1")
def test_what_the_host_reads_is_in_the_log_with_data_and_without(tmp_path: Path) -> None:
    def logged(data: bool) -> list[tuple[str, int, int]]:
        log = run(tmp_path, READS, data=data).op_log
        return [
            (each.template.name, each.template.duration_ps, each.starts_ps[0])
            for each in log.instances
        ]

    with_data = logged(data=True)
    assert logged(data=False) == with_data
    assert sum(name == "copy_to_host" for name, *_ in with_data) >= 20


@pytest.mark.adr("0066-D1")
def test_what_is_loaded_onto_a_device_leaves_its_data_behind(tmp_path: Path) -> None:
    source = """
import io
file = io.BytesIO()
torch.save({"x": torch.arange(8.0), "weight": torch.nn.Parameter(torch.ones(3, 8))}, file)
for where in ("cuda", torch.device("cuda", 1), {"cpu": "cuda:1"}):
    file.seek(0)
    found = torch.load(file, map_location=where)
    x, weight = found["x"], found["weight"]
    assert x.device.type == "cuda" and type(weight) is torch.nn.Parameter
    assert x.untyped_storage().data_ptr() == 0
    assert (weight @ (x + torch.ones(8, device=x.device))).device == x.device
again = io.BytesIO()
torch.save(found, again)
again.seek(0)
assert torch.load(again)["x"].device == torch.device("cuda", 1)
file.seek(0)
assert torch.load(file)["x"].tolist() == list(range(8))
"""
    run(tmp_path, source)


@pytest.mark.adr("0066-D1")
def test_a_parameter_of_the_host_may_be_given_data_of_a_device(tmp_path: Path) -> None:
    source = """
model = torch.nn.Linear(4, 2)
weight = model.weight
weight.data = weight.data.cuda()
assert model.weight is weight and weight.is_leaf and weight.requires_grad
assert weight.is_cuda and weight.untyped_storage().data_ptr() == 0
(torch.ones(3, 4, device="cuda") @ weight.T).sum().backward()
assert weight.grad.device == weight.device
weight.grad = None
weight.data = weight.data.cpu()
assert weight.device.type == "cpu" and weight.shape == (2, 4)
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = fully_shard(torch.nn.Linear(4, 2))  # moves what is on the host
model(torch.ones(3, 4)).sum().backward()
assert model.weight.grad.device == torch.device("cuda", dist.get_rank())
"""
    run(tmp_path, source, nprocs=2)


COLLECTIVES = """
import torch.distributed._functional_collectives as functional
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(4, 6, device="cuda")
dist.all_reduce(x)
whole = functional.all_gather_tensor(x, 0, dist.group.WORLD)
part = functional.reduce_scatter_tensor(whole + 1, "sum", 0, dist.group.WORLD)
assert whole.shape == (8, 6) and part.shape == x.shape
assert (part + 1).device == x.device
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}]
"""


@pytest.mark.adr("0066-D1")
def test_collectives_take_their_time_and_objects_keep_their_values(tmp_path: Path) -> None:
    def collectives(data: bool) -> list[tuple[str, int]]:
        log = run(tmp_path, COLLECTIVES, data=data, nprocs=2).op_log
        return [
            (each.template.name, each.template.message_bytes)
            for each in log.instances
            if each.template.kind == "collective"
        ]

    found = collectives(data=False)
    assert found == collectives(data=True)
    assert len(found) >= 5


WRAPPED = """
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
model = MODEL
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    assert all(each.grad is None or each.grad.is_cuda for each in model.parameters())
    optimizer.zero_grad()
"""


@pytest.mark.adr("0066-D1")
@pytest.mark.parametrize(
    "model",
    [
        "DDP(model)",
        "DDP(model, find_unused_parameters=True)",
        "FSDP(model, use_orig_params=True)",
        "FSDP(nn.Sequential(*map(FSDP, model)))",
        "fully_shard(model)",
    ],
)
def test_data_parallel_training_has_the_collectives_of_one_with_data(
    tmp_path: Path, model: str
) -> None:
    def collectives(data: bool) -> list[tuple[str, int]]:
        log = run(tmp_path, WRAPPED.replace("MODEL", model), data=data, nprocs=2).op_log
        return sorted(
            (each.template.name, each.template.message_bytes)
            for each in log.instances
            if each.template.kind == "collective"
        )

    found = collectives(data=False)
    assert found == collectives(data=True)
    assert len(found) > 3


@pytest.mark.adr("0066-D1")
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_one_operation_forward_and_one_backward(tmp_path: Path, causal: bool) -> None:
    source = f"""
q = torch.ones(1, 8, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
k = torch.ones(1, 2, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
out = torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal={causal}, enable_gqa=True)
assert out.shape == q.shape
out.backward(torch.ones_like(out))
assert k.grad.shape == k.shape and k.grad.device == k.device
"""
    names = {each.template.name for each in run(tmp_path, source).op_log.instances}
    assert {name for name in names if "attention" in name} == {
        "aten._scaled_dot_product_flash_attention",
        "aten._scaled_dot_product_flash_attention_backward",
    }
    assert "aten.bmm" not in names


@pytest.mark.adr("0066-D3")
def test_equal_operations_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = Shapes()
    func = torch.ops.aten.add.Tensor
    x = torch.empty(4, 6, device="meta")
    first, known = shapes.execute(func, describe(func), (x, x.T.contiguous().T), {"alpha": 2})
    again, same = shapes.execute(func, describe(func), (x, x.T.contiguous().T), {"alpha": 2})
    assert known is same is not None
    assert again is not first
    assert (again.shape, again.stride(), again.dtype) == (first.shape, first.stride(), first.dtype)
    _, other = shapes.execute(func, describe(func), (x, x), {"alpha": 2})
    assert other is not known
    func = torch.ops.aten.mul_.Tensor
    result, _ = shapes.execute(func, describe(func), (x, x), {})
    assert result is x
    result, _ = shapes.execute(func, describe(func), (x, x), {})
    assert result is x


@pytest.mark.adr("0066-D1")
def test_numbers_with_a_fraction_size_a_range(tmp_path: Path) -> None:
    source = """
for end in (3.0, 9.0, 2.5):
    made = torch.arange(end, device="cuda"), torch.arange(0.0, end, device="cuda")
    assert all(each.shape == torch.arange(end).shape for each in made), made
for step in (0.25, 0.1):
    assert torch.arange(0, 1, step, device="cuda").shape == torch.arange(0, 1, step).shape
"""
    run(tmp_path, source)
