"""Each of four ranks gets the sum of parts of its own length, as in NCCL's group."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
lengths = [index + 1 for index in range(size)]
parts = [
    torch.arange(3.0 * length, device="cuda").view(length, 3) + 100 * rank for length in lengths
]
out = torch.empty(lengths[rank], 3, device="cuda")
dist.reduce_scatter(out, parts)
numbers = torch.arange(3.0 * lengths[rank]).view(-1, 3)
assert torch.equal(out.cpu(), size * numbers + 100 * sum(range(size)))
dist.reduce_scatter(out, parts, op=dist.ReduceOp.MAX)
assert torch.equal(out.cpu(), numbers + 100 * (size - 1))
