"""Streams and events, in simulated time.

python streams.py CASE [ARGUMENTS]"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import triton
from torch.distributed.fsdp import fully_shard


def elapsed_time(path):
    x = torch.ones(1 << 24, device="cuda")
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    x.add_(1)
    x.add_(1)
    end.record()
    end.synchronize()
    assert start.query()
    assert end.query()
    Path(path).write_text(f"{start.elapsed_time(end):.9f}")


def a_range_of_priorities_is_that_of_pytorch():
    least, greatest = torch.cuda.Stream.priority_range()
    assert (least, greatest) == (0, -3)
    assert torch.cuda.Stream(priority=greatest).priority == greatest


def many_readings(path):
    x = torch.ones(1 << 10, device="cuda")
    interface = triton.runtime.driver.active.get_device_interface()
    start, end = (interface.Event(enable_timing=True) for _ in range(2))
    start.record()
    x.add_(1)
    end.record()
    interface.synchronize()
    began = time.perf_counter()
    # As benchmarks do, which read a thousand pairs at the end.
    elapsed_times = {start.elapsed_time(end) for _ in range(1 << 15)}
    Path(path).write_text(f"{len(elapsed_times)} {time.perf_counter() - began < 1}")


def copy_beside_kernels():
    x, host = torch.ones(1 << 24, device="cuda"), torch.ones(1 << 20)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = host.to("cuda", non_blocking=True)
    x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    y.add_(1)


def prefetched_gathers():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = nn.Sequential(*(nn.Linear(512, 512, device="cuda") for _ in range(4)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(512, 512, device="cuda")).sum().backward()


def sleep(seconds):
    time.sleep(float(seconds))
    torch.ones(1, device="cuda")


def events_of_an_idle_stream(path):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    end.record()
    Path(path).write_text(f"{start.elapsed_time(end):.9f}")


def sleeping_kernels(path):
    times = {}
    for cycles in (0, 1_500_000):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.ones(3, device="cuda")
        side.synchronize()
        assert not cycles or not end.query()
        end.synchronize()
        times[cycles] = begin.elapsed_time(end)
    Path(path).write_text(f"{times[1_500_000] - times[0]:.9f}")


def a_function_of_the_programs_own_sets_them():
    """As vLLM keeps the current stream: it puts one in the place of torch.cuda.set_stream."""
    seen, before = [], torch.cuda.set_stream

    def set_stream(stream):
        seen.append(stream)
        before(stream)

    torch.cuda.set_stream = set_stream
    side, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
    with torch.cuda.stream(side):
        pass
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
        x.add_(1)
    assert [item == side for item in seen] == [True, False] * 2


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
