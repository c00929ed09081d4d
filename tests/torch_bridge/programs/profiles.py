"""Profiles of two ranks, and what they say.

python profiles.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(64, 64, device="cuda")
torch.mm(x, x)  # not in the profile
kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(activities=kinds, with_flops=True) as prof:
    prof.add_metadata_json("my key", "[1, 2]")
    with record_function("my step"):
        for _ in range(rank + 1):
            torch.mm(x, x)
        dist.all_reduce(x)
    with torch.cuda.nvtx.range("marked"):
        torch.add(x, x)
rows = {row.key: row for row in prof.key_averages()}
prof.export_chrome_trace(f"{sys.argv[1]}/{rank}.json")
result = {
    name: [row.count, row.self_device_time_total, row.device_time_total, row.flops]
    for name, row in rows.items()
}
with Path(sys.argv[1], f"{rank}.found").open("w") as out:
    collectives = [row for row in prof.key_averages() if row.key == "all_reduce"]
    json.dump([result, len(collectives), prof.key_averages().table(sort_by="cuda_time_total")], out)
saved = []
cycle = schedule(wait=1, warmup=1, active=2, repeat=2)
with profile(schedule=cycle, on_trace_ready=lambda p: saved.append(len(p.events()))) as prof:
    for _ in range(9):
        torch.add(x, x)
        prof.step()
assert len(saved) == 2
assert saved[0] == saved[1] > 0
with torch.autograd.profiler.emit_nvtx(), torch.cuda.profiler.profile():
    torch.add(x, x)
board = torch.profiler.tensorboard_trace_handler(f"{sys.argv[1]}/board{rank}", use_gzip=True)
with profile(schedule=cycle, on_trace_ready=board) as prof:
    for _ in range(9):
        torch.add(x, x)
        prof.step()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.sub(x, x)
with profile(activities=kinds) as prof:
    # Nothing of that stream is in the profile but the wait for it.
    side.synchronize()
    torch.add(x, x)
prof.export_chrome_trace(f"{sys.argv[1]}/{rank}.waits.json")
