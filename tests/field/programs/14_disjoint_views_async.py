# A write beside what a collective has, in one buffer, as Megatron's gradients are.
# run: kernbench torchrun --nproc-per-node 2 {file} reduce_scatter
# run: kernbench torchrun --nproc-per-node 2 {file} all_gather
# run: kernbench torchrun --nproc-per-node 2 {file} all_reduce
# run: kernbench torchrun --nproc-per-node 2 {file} coalesced
# expect: ok 0
# expect: ok 1

import sys

import torch
import torch.distributed as dist

kind = sys.argv[1] if len(sys.argv) > 1 else "reduce_scatter"
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
r, n = dist.get_rank(), dist.get_world_size()
buffer = torch.zeros(64, device=torch.device("cuda", r) if cuda else "cpu")
first, second = buffer[:32], buffer[32:]
first += r + 1
shard = first.chunk(n)[r]
if kind == "reduce_scatter":
    work = dist.reduce_scatter_tensor(shard, first, async_op=True)
elif kind == "all_gather":
    work = dist.all_gather_into_tensor(first, shard, async_op=True)
elif kind == "all_reduce":
    work = dist.all_reduce(first, async_op=True)
else:
    from torch.distributed.distributed_c10d import _coalescing_manager

    with _coalescing_manager(dist.group.WORLD, async_ops=True) as work:
        dist.reduce_scatter_tensor(shard, first)
second += 1.0
work.wait()
print("ok", r, shard[0].item(), second[0].item())
