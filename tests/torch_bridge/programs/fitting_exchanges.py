"""Ranks that call all_to_all in different ways, which fit each other."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
value, taken = (torch.arange(8.0, device="cuda") + 10 * rank for _ in range(2))
dist.all_to_all_single(taken, value, *(([2] * 4, [2] * 4) if rank == 1 else ()))
assert taken.tolist() == [10 * index + 2 * rank + i for index in range(4) for i in range(2)]
shape = (2, 3) if rank == 1 else (3, 2)
rows = [torch.full(shape, float(rank), device="cuda")] * 4
parts = [torch.empty(3, 2, device="cuda") for _ in range(4)]
dist.all_to_all(parts, rows)
assert [part.unique().item() for part in parts] == [0, 1, 2, 3]
