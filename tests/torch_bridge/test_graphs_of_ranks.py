"""Collectives in CUDA graphs: all ranks call them when they replay."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import CollectiveMismatchError, DeadlockError  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

START = """
import copy
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn as nn
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(rank)
x = torch.randn(8, 16, device="cuda")
g = torch.cuda.CUDAGraph()
"""


def run(folder: Path, source: str, nprocs: int = 2, data: bool = True) -> RuntimeContext:
    path = folder / "case.py"
    path.write_text(START + source)
    return simulated(path, nprocs=nprocs, data=data)


ALL = """
w = torch.randn(16, 16, device="cuda")
def step():
    y = x @ w
    dist.all_reduce(y)
    whole = torch.empty(size * 8, 16, device="cuda")
    # Its input is nobody's but the collective's, and later results are as large.
    work = dist.all_gather_into_tensor(whole, y + rank, async_op=True)
    total = (y * 2).sum()
    work.wait()
    summed = functional.all_reduce(x + 1, "sum", dist.group.WORLD)
    part = functional.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD)
    got, peer = torch.empty_like(x), (rank + 1) % size
    pair = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
    for each in dist.batch_isend_irecv(pair):
        each.wait()
    dist.broadcast(total, 1)
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x)
    return [y.relu(), whole + 1, total + 0, summed * 2, part * 1, got, *parts]
with torch.cuda.graph(g):
    found = step()
for _ in range(3):
    x.copy_(torch.randn(8, 16))
    g.replay()
    for one, other in zip(found, step(), strict=True):
        assert one.shape == other.shape and torch.equal(one, other)
"""


@pytest.mark.adr("0094-D6")
@pytest.mark.parametrize("data", [True, False])
def test_collectives_of_a_graph_give_what_eager_ones_do(data: bool, tmp_path: Path) -> None:
    context = run(tmp_path, ALL, 4, data)
    log = context.op_log
    launched = sum(each.kind == "launch" and each.label == "all_reduce" for each in log.host_spans)
    # Two of each rank's step, of which three are eager; the graphs' are launched with these.
    assert launched == 4 * 3 * 2
    reduced = sum(len(each.ranks) for each in log.instances if each.template.name == "all_reduce")
    assert reduced == 2 * launched


TRAINING = """
import sys
torch.manual_seed(0)
def network(): return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
plain = network()
model = copy.deepcopy(plain)
PARALLEL
def step(model, optimizer, x):
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
inputs = torch.randn(4, 2, 8, 16).cuda()
def mine(step): return inputs[step, rank] if SPLITS else inputs[step].flatten(0, 1)
static, side = mine(0).clone(), torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(11): step(model, optimizers[0], static)
torch.cuda.current_stream().wait_stream(side)
for _ in range(11): step(plain, optimizers[1], inputs[0].flatten(0, 1))
with torch.cuda.graph(g):
    loss = step(model, optimizers[0], static)
for number in (1, 2, 3):
    static.copy_(mine(number))
    g.replay()
    whole = step(plain, optimizers[1], inputs[number].flatten(0, 1))
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    torch.testing.assert_close(mean / size, whole)
for one, other in zip(model.parameters(), plain.parameters(), strict=True):
    one = one.full_tensor() if hasattr(one, "full_tensor") else one
    torch.testing.assert_close(one, other)
"""
TENSOR = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
SPLITS = False
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
parallelize_module(model, init_device_mesh("cuda", (size,)), plan)
"""
DATA = """
SPLITS = True
model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
"""


@pytest.mark.slow
@pytest.mark.adr("0094-D6")
@pytest.mark.parametrize("parallel", [TENSOR, DATA], ids=["tensor", "ddp"])
def test_parallel_training_that_is_captured_whole_learns_what_one_process_does(
    parallel: str, tmp_path: Path
) -> None:
    run(tmp_path, TRAINING.replace("PARALLEL", parallel))


@pytest.mark.adr("0094-D6")
def test_an_overlapped_collective_of_a_graph_overlaps(tmp_path: Path) -> None:
    context = run(
        tmp_path,
        "big, w = torch.empty(1 << 22, device='cuda'), torch.empty(4096, 4096, device='cuda')\n"
        "with torch.cuda.graph(g):\n"
        "    work = dist.all_reduce(big, async_op=True)\n"
        "    y = w @ w\n"
        "    work.wait()\n"
        "    z = big + 1\n"
        "g.replay()\n",
        data=False,
    )
    log = context.op_log.instances
    reduced, product, added = (
        next(each for each in log if each.template.name == name and 0 in each.ranks)
        for name in ("all_reduce", "aten.mm", "aten.add")
    )
    assert product.starts_ps[0] < reduced.ends_ps[0] <= added.starts_ps[0]


@pytest.mark.adr("0094-D6")
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("if rank == 0: g.replay()", DeadlockError),
        ("if rank == 0: g.replay()\nelse: dist.broadcast(x, 0)", CollectiveMismatchError),
    ],
)
def test_replays_that_do_not_meet_end_at_once(
    source: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises((error, BaseExceptionGroup)) as caught:
        run(tmp_path, f"with torch.cuda.graph(g): dist.all_reduce(x)\n{source}\n")
    found = caught.value
    if isinstance(found, BaseExceptionGroup):
        assert found.split(error)[1] is None
        found = found.exceptions[0]
    # The line of the replay.
    assert "case.py:14" in str(found)


@pytest.mark.adr("0094-D3")
@pytest.mark.parametrize(
    ("inside", "named"),
    {
        "dist.barrier()": "barrier",
        "dist.all_reduce(x, async_op=True).is_completed()": "is_completed",
        "dist.all_gather_object([None] * size, 1)": "operation not permitted",
        "x.add_(1).untyped_storage().resize_(0)": "UntypedStorage.resize_ of memory that is older",
    }.items(),
)
def test_what_the_host_takes_part_in_is_refused(inside: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        run(tmp_path, f"with torch.cuda.graph(g): {inside}\n")
    assert all(
        named in str(each) and "when stream is capturing" in str(each)
        for each in caught.value.exceptions
    )


SHARDED = """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
def made(**options):
    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(3)]
    model = nn.Sequential(*layers).cuda()
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)
def train(options, is_captured):
    model = made(**options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    given, wanted = torch.empty(8, 16, device="cuda"), torch.empty(8, 16, device="cuda")
    def forward_backward():
        loss = (model(given) - wanted).square().mean()
        loss.backward()
        return loss
    torch.manual_seed(20 + rank)
    losses, again = [], forward_backward
    for step in range(6):
        given.copy_(torch.randn(8, 16))
        wanted.copy_(torch.randn(8, 16))
        optimizer.zero_grad(set_to_none=True) if again is forward_backward else None
        if is_captured and step == 2:
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                loss = forward_backward()
            def again():
                g.replay()
                return loss
        losses.append(again().item())
        optimizer.step()
    return losses, [each.full_tensor().detach().cpu() for each in model.parameters()]
half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for options in ({}, {"mp_policy": half}, {"reshard_after_forward": False}):
    eager, graphed = train(options, False), train(options, True)
    assert eager[0] == graphed[0], (options, eager[0], graphed[0])
    assert len(set(eager[0])) == 6
    for one, other in zip(eager[1], graphed[1]):
        assert torch.equal(one, other)
"""


@pytest.mark.adr("0094-D7")
def test_a_sharded_model_that_is_captured_trains_as_it_does_otherwise(tmp_path: Path) -> None:
    run(tmp_path, SHARDED)
