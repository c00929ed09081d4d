"""Programs of two ranks, compiled: collectives in graphs, FSDP by block, tensor parallelism."""

import copy
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn
from torch._inductor import comm_analysis
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(0)
OFFSET = 1


def difference(result, expected):
    result, expected = result.detach().cpu(), expected.detach().cpu()
    return ((result - expected).abs().max() / expected.abs().max()).item()


if rank == 1:
    # Who compiles first makes the compiler's patterns, for device 0, of which it takes no memory.
    result = torch.compile(torch.sin)(torch.ones(9).cuda())
    assert difference(result, torch.ones(9).sin()) < 1e-6
    assert [torch.cuda.memory_reserved(index) > 0 for index in range(size)] == [False, True]
dist.barrier()


@torch.compile(fullgraph=True)
def parallel(x, a, b):
    partial = F.gelu(x @ a) @ b
    return F.silu(collectives.all_reduce(partial, "sum", dist.group.WORLD)) * 2 + OFFSET


x, a, b = torch.randn(8, 32), torch.randn(32, 64) / 8, torch.randn(64, 32) / 8
expected = F.silu(F.gelu(x @ a) @ b) * 2 + 1
# A global of the rank's own module: what is compiled for another rank does not hold here.
OFFSET = 1 + rank
shards = (a.chunk(size, 1)[rank].contiguous().cuda(), b.chunk(size, 0)[rank].contiguous().cuda())
assert difference(parallel(x.cuda(), *shards), expected + rank) < 1e-5

data = torch.randn(2, size * 4, 32)
reference = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


def trained(model, batch_of, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model(batch_of(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


sharded = copy.deepcopy(reference).cuda()
for layer in sharded:
    layer.compile()
fully_shard(sharded)
split = copy.deepcopy(reference).cuda()
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
split = torch.compile(parallelize_module(split, init_device_mesh("cuda", (size,)), plan))
# Buckets of one layer each, between which the graph is cut.
dist._DEFAULT_FIRST_BUCKET_BYTES = 1024
bucketed = nn.parallel.DistributedDataParallel(copy.deepcopy(reference).cuda(), bucket_cap_mb=1e-3)
trained(torch.compile(bucketed), lambda step: data[step, rank * 4 : (rank + 1) * 4].cuda())
trained(reference, lambda step: data[step])
for mine, other in zip(bucketed.parameters(), reference.parameters(), strict=True):
    assert difference(mine, other) < 1e-4
trained(sharded, lambda step: data[step, rank * 4 : (rank + 1) * 4].cuda())
trained(split, lambda step: data[step].cuda())
for model in (sharded, split):
    for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert difference(mine.full_tensor(), other) < 1e-4


# What another rank has kept on disk is for its own device.
@torch.compile(fullgraph=True)
def gathered(x, weight):
    return (x @ weight).relu().redistribute(placements=[Replicate()]).to_local()


mesh = init_device_mesh("cuda", (size,))
shards = distribute_tensor(x.cuda(), mesh, [Shard(0)]), distribute_tensor(a.cuda(), mesh)
began = time.perf_counter()
result = gathered(*shards)
middle = time.perf_counter()
gathered(*shards)
# The rules of these layouts are found while compiling, which takes no simulated time.
assert middle - began < 2 * (time.perf_counter() - middle)
assert result.device.index == rank
assert difference(result, (x @ a).relu()) < 1e-5

# Async tensor parallelism is that of usual collectives; the report says so.
with torch._inductor.config.patch(_micro_pipeline_tp=True):
    whole = torch.compile(lambda x, w: collectives.all_gather_tensor(x, 0, dist.group.WORLD) @ w)
    assert difference(whole(x.chunk(size)[rank].cuda(), a.cuda()), x @ a) < 1e-5

# Collectives are estimated on the machine's links: 450 GB/s one way, no more.
least_ms = (64 << 20) * 2 * (size - 1) / size / 450e6
kind = comm_analysis.NCCL_COLL.ALL_REDUCE
estimate_ms = comm_analysis.estimate_nccl_collective_runtime_impl(64 << 20, size, kind)
assert least_ms < estimate_ms < 2 * least_ms, (least_ms, estimate_ms)
