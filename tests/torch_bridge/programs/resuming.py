"""Trains with DistributedDataParallel, keeps a checkpoint now and then, and resumes from it."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

folder, most = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
inner = nn.Linear(32, 32, device="cuda")
model = nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
path, step = folder / "checkpoint.pt", 0
if path.exists():
    kept = torch.load(path)
    step = kept["step"]
    inner.load_state_dict(kept["model"])
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
with (folder / f"started{rank}").open("a") as out:
    print(count, os.environ["TORCHELASTIC_MAX_RESTARTS"], step, file=out)
while step < most:
    torch.manual_seed(step * 8 + rank)
    loss = model(torch.randn(16, 32, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 2 == 0:
        if rank == 0:
            # As a whole or not at all: the process may end here.
            torch.save({"step": step, "model": inner.state_dict()}, folder / "new.pt")
            (folder / "new.pt").replace(path)
        dist.barrier(device_ids=[rank])
assert torch.cuda.memory_allocated() < 2**17, "of this process alone"
weights = {name: value.cpu() for name, value in inner.state_dict().items()}
torch.save(weights, folder / f"rank{rank}.pt")
dist.destroy_process_group()
