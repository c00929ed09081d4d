"""Streams and events in simulated time."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.runtime_api import RuntimeContext  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, **options: object) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text("import time\nimport torch\n" + source)
    return simulated(path, **options)  # type: ignore[arg-type]


@pytest.mark.adr("0063-D3")
def test_elapsed_time_is_the_simulated_time_between_two_points_of_a_stream(tmp_path: Path) -> None:
    source = """
x = torch.ones(1 << 24, device="cuda")
torch.cuda.synchronize()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
x.add_(1)
x.add_(1)
end.record()
end.synchronize()
assert start.query() and end.query()
with open({0!r}, "w") as said:
    said.write(f"{start.elapsed_time(end):.9f}")
"""
    said = tmp_path / "said"
    context = run(tmp_path, source.replace("{0!r}", repr(str(said))))
    adds = [each for each in context.op_log.instances if each.template.name == "aten.add_"]
    # The first event happens when its marker reaches the idle stream, before the launch of add_.
    launch_ps = context.machine.sip.host_launch_ps
    expected_ps = adds[-1].ends_ps[0] - (adds[0].starts_ps[0] - launch_ps)
    assert float(said.read_text()) == pytest.approx(expected_ps / 1e9, abs=1e-9)


@pytest.mark.adr("0063-D3")
def test_an_event_on_an_idle_stream_has_happened_when_it_is_asked_about(tmp_path: Path) -> None:
    source = """
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
torch.ones(4, device="cuda")
torch.cuda.synchronize()
end.record()
assert start.elapsed_time(end) > 0
"""
    run(tmp_path, source)


@pytest.mark.adr("0063-D3")
def test_a_copy_on_a_stream_of_its_own_runs_beside_kernels(tmp_path: Path) -> None:
    source = """
x, host = torch.ones(1 << 24, device="cuda"), torch.ones(1 << 20)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = host.to("cuda", non_blocking=True)
x.add_(1)
torch.cuda.current_stream().wait_stream(side)
y.add_(1)
"""
    context = run(tmp_path, source)
    by_name = {each.template.name: each for each in context.op_log.instances}
    copy = by_name["copy_from_host"]
    first, last = (e for e in context.op_log.instances if e.template.name == "aten.add_")
    assert first.starts_ps[0] < copy.ends_ps[0] <= last.starts_ps[0]
    assert copy.stream != first.stream == last.stream


@pytest.mark.adr("0063-D3")
def test_sleep_takes_simulated_time_and_no_real_one(tmp_path: Path) -> None:
    context = run(tmp_path, "time.sleep(3600)\ntorch.ones(1, device='cuda')")
    assert context.op_log.instances[0].starts_ps[0] > 3600 * 10**12


@pytest.mark.adr("0063-D3")
def test_prefetched_gathers_of_fsdp_overlap_the_layers_before(tmp_path: Path) -> None:
    source = """
import os, torch.distributed as dist, torch.nn as nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*(nn.Linear(512, 512, device="cuda") for _ in range(4)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model(torch.ones(512, 512, device="cuda")).sum().backward()
"""
    context = run(tmp_path, source, nprocs=2)
    gathers = [e for e in context.op_log.instances if e.template.name == "all_gather"]
    kernels = [
        e for e in context.op_log.instances if e.template.name == "aten.addmm" and e.ranks == (0,)
    ]
    overlapped = [
        gather
        for gather in gathers
        if any(
            k.starts_ps[0] < gather.ends_ps[0] and gather.starts_ps[0] < k.ends_ps[0]
            for k in kernels
        )
    ]
    assert overlapped
