"""Programs whose tensors may have no data.

python without_data.py CASE [ARGUMENTS]"""

import io
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from kernbench.torch_bridge.dispatch.addresses import host_address

GRADIENTS = ShardingStrategy.SHARD_GRAD_OP


def training():
    torch.manual_seed(0)
    device = "cuda"
    model = nn.Sequential(nn.Embedding(32, 16), nn.LayerNorm(16), nn.Linear(16, 32)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _step in range(2):
        tokens = torch.randint(32, (4, 8), device=device)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def reads():
    x = torch.ones(4, 8, device="cuda") * 2
    for how in (
        lambda: x.tolist(),
        lambda: x[1:3].tolist(),
        lambda: x.t().tolist(),
        lambda: x[0, 0].tolist(),
        lambda: x[:0].tolist(),
        lambda: x.long().tolist(),
        lambda: x.sum().item(),
        lambda: bool(x.any()),
        lambda: float(x[0, 0]),
        lambda: int(x[0, 0]),
        lambda: x.cpu(),
        lambda: x.to("cpu"),
        lambda: x.cpu().numpy(),
        lambda: x.numpy(force=True),
        lambda: x.new_tensor([x[0, 0]]),
        lambda: torch.empty(4, 8).copy_(x),
        lambda: torch.equal(x, x),
        lambda: torch.allclose(x, x),
        lambda: torch.unique(x),
        lambda: x[x > 0],
        lambda: f"{x.sum():.1f}",
        lambda: torch.save({"a": x, "b": x[1]}, io.BytesIO()),
        lambda: torch.tensor([x.sum(), x.max()]),
        lambda: list(range(9))[x.sum().long() * 0],
        lambda: torch.testing.assert_close(x, x),
        lambda: torch.save(torch.nn.Linear(4, 4).cuda(), io.BytesIO()),
    ):
        torch.cuda.synchronize()
        how()


def prints():
    """What is shown is waited for; how many operations that takes depends on the numbers."""
    x = torch.ones(1024, 1024, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for show in (print, repr, str, "{}".format):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        start.record()
        y = x @ x
        end.record()
        show(y)
        assert 1e3 * (time.perf_counter() - begun) > start.elapsed_time(end)


def collectives():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    x = torch.ones(4, 6, device="cuda")
    dist.all_reduce(x)
    whole = functional.all_gather_tensor(x, 0, dist.group.WORLD)
    part = functional.reduce_scatter_tensor(whole + 1, "sum", 0, dist.group.WORLD)
    assert whole.shape == (8, 6)
    assert part.shape == x.shape
    assert (part + 1).device == x.device
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]


def wrapped(how):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    model = {
        "ddp": lambda: DDP(layers),
        "ddp with unused": lambda: DDP(layers, find_unused_parameters=True),
        "fsdp": lambda: FSDP(layers, use_orig_params=True),
        "fsdp of gradients": lambda: FSDP(
            nn.Sequential(
                *(
                    FSDP(layer, sharding_strategy=GRADIENTS, use_orig_params=True)
                    for layer in layers
                )
            ),
            sharding_strategy=GRADIENTS,
            use_orig_params=True,
        ),
        "fsdp of fsdp": lambda: FSDP(nn.Sequential(*map(FSDP, layers))),
        "fsdp2": lambda: fully_shard(layers),
    }[how]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _step in range(3):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        assert all(
            parameter.grad is None or parameter.grad.is_cuda for parameter in model.parameters()
        )
        optimizer.zero_grad()


def loads():
    file = io.BytesIO()
    torch.save({"x": torch.arange(8.0), "weight": torch.nn.Parameter(torch.ones(3, 8))}, file)
    for where in ("cuda", torch.device("cuda", 1), {"cpu": "cuda:1"}):
        file.seek(0)
        tensor = torch.load(file, map_location=where)
        x, weight = tensor["x"], tensor["weight"]
        assert x.device.type == "cuda"
        assert type(weight) is torch.nn.Parameter
        assert host_address(x.untyped_storage()) == 0 < x.untyped_storage().data_ptr()
        assert (weight @ (x + torch.ones(8, device=x.device))).device == x.device
    again = io.BytesIO()
    torch.save(tensor, again)
    again.seek(0)
    assert torch.load(again)["x"].device == torch.device("cuda", 1)
    file.seek(0)
    assert torch.load(file)["x"].tolist() == list(range(8))


def moved_parameters():
    model = torch.nn.Linear(4, 2)
    weight = model.weight
    weight.data = weight.data.cuda()
    assert model.weight is weight
    assert weight.is_leaf
    assert weight.requires_grad
    assert weight.is_cuda
    assert host_address(weight.untyped_storage()) == 0
    assert weight.untyped_storage().data_ptr() == weight.data_ptr()
    (torch.ones(3, 4, device="cuda") @ weight.T).sum().backward()
    assert weight.grad.device == weight.device
    weight.grad = None
    weight.data = weight.data.cpu()
    assert weight.device.type == "cpu"
    assert weight.shape == (2, 4)
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = fully_shard(torch.nn.Linear(4, 2))  # moves what is on the host
    model(torch.ones(3, 4)).sum().backward()
    assert model.weight.grad.device == torch.device("cuda", dist.get_rank())


def attention(causal):
    q = torch.ones(1, 8, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.ones(1, 2, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, k, is_causal=causal == "True", enable_gqa=True
    )
    assert out.shape == q.shape
    out.backward(torch.ones_like(out))
    assert k.grad.shape == k.shape
    assert k.grad.device == k.device


def tied():
    table, head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
    table.weight = head.weight
    model = torch.nn.Sequential(table, head)
    (before,) = model.parameters()
    model.to("cuda")
    (after,) = model.parameters()
    assert before is after
    assert after.is_cuda
    model(torch.zeros(3, dtype=torch.int64, device="cuda")).sum().backward()
    assert before.grad.device == after.device
    model.cpu()
    (there,) = model.parameters()
    assert there is before
    assert there.device.type == there.grad.device.type == "cpu"
    model.cuda()
    assert before.is_cuda
    assert before.grad.is_cuda
    model.bfloat16()
    assert before.dtype is before.grad.dtype is torch.bfloat16


def ranges():
    for end in (3.0, 9.0, 2.5):
        tensors = torch.arange(end, device="cuda"), torch.arange(0.0, end, device="cuda")
        assert all(item.shape == torch.arange(end).shape for item in tensors), tensors
    for step in (0.25, 0.1):
        assert torch.arange(0, 1, step, device="cuda").shape == torch.arange(0, 1, step).shape


def written() -> None:
    a, b = (torch.ones(16, 16, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scale, out = torch.ones((), device="cuda"), torch.empty(16, 16, device="cuda")
    tensor = torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=out.dtype, out=out)
    assert tensor is out
    assert tensor.shape == (16, 16)


def written_by_data() -> None:
    x, out = torch.ones(4, device="cuda"), torch.empty(3, device="cuda")
    torch.masked_select(x, x > 0, out=out)


def large_tensors():
    x = torch.zeros(1 << 20, 1 << 20, device="cuda", dtype=torch.bfloat16)  # 2 TiB
    y = (x[: 1 << 10] @ x + 1).relu().sum(-1)
    assert y.device == x.device == torch.device("cuda", 0)
    assert y.shape == (1 << 10,)
    assert host_address(y.untyped_storage()) == 0
    assert y.untyped_storage().data_ptr() == y.data_ptr() > 0
    y.untyped_storage().resize_(0)
    assert y.untyped_storage().data_ptr() == 0
    assert not x.is_meta
    assert x.is_cuda


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
