"""``torch.profiler`` and named ranges say what the timeline says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(64, 64, device="cuda")
x @ x  # not in the profile
kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(activities=kinds, with_flops=True) as prof:
    with record_function("my step"):
        for _ in range(rank + 1):
            x @ x
        dist.all_reduce(x)
    with torch.cuda.nvtx.range("marked"):
        x + x
rows = {row.key: row for row in prof.key_averages()}
prof.export_chrome_trace(f"{sys.argv[1]}/{rank}.json")
found = {
    name: [row.count, row.self_device_time_total, row.device_time_total, row.flops]
    for name, row in rows.items()
}
with open(f"{sys.argv[1]}/{rank}.found", "w") as out:
    collectives = [row for row in prof.key_averages() if row.key == "all_reduce"]
    json.dump([found, len(collectives), prof.key_averages().table(sort_by="cuda_time_total")], out)
saved = []
cycle = schedule(wait=1, warmup=1, active=2, repeat=2)
with profile(schedule=cycle, on_trace_ready=lambda p: saved.append(len(p.events()))) as prof:
    for _ in range(9):
        x + x
        prof.step()
assert len(saved) == 2 and saved[0] == saved[1] > 0
with torch.autograd.profiler.emit_nvtx(), torch.cuda.profiler.profile():
    x + x
"""


@pytest.mark.slow
@pytest.mark.adr("0077-D2")
def test_a_profile_is_what_the_op_log_says_of_the_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    context = simulated(program, tmp_path, nprocs=2)
    for rank in range(2):
        found, collectives, table = json.loads((tmp_path / f"{rank}.found").read_text())
        products = [
            each
            for each in context.op_log.instances
            if each.template.name == "aten.mm" and each.ranks == (rank,)
        ][1:]
        assert len(products) == rank + 1
        assert found["aten.mm"][0] == found["aten::mm"][0] == rank + 1
        assert found["aten::mm"][3] == sum(each.template.flops for each in products)
        time_us = sum(each.ends_ps[0] - each.starts_ps[0] for each in products) / 1e6
        assert found["aten.mm"][1] == pytest.approx(time_us)
        assert found["aten::mm"][2] == pytest.approx(time_us)
        assert found["my step"][2] >= found["aten::mm"][2]
        assert collectives == 2  # one launched by the host, one on the device
        assert found["marked"][0] == 1
        assert "Self CUDA time total" in table
        named = {each.name for each in context.op_log.host_ranges if each.rank == rank}
        assert named >= {"my step", "marked"}
        events = json.loads((tmp_path / f"{rank}.json").read_text())
        assert sum(each["name"] == "aten.mm" for each in events) == rank + 1
