"""What a host does between two launches; the first argument says what."""

import cProfile
import datetime
import os
import select
import sys
import threading
import time
from queue import SimpleQueue
from types import new_class
from typing import Any, Protocol, runtime_checkable

import torch


def called() -> None:
    pass


def call(count: int) -> None:
    for _ in range(count):
        called()


def profiled() -> None:
    profile = cProfile.Profile()
    profile.enable()
    x.add_(1)
    call(50)
    x.add_(1)
    profile.disable()
    counts = {entry.code: entry.callcount for entry in profile.getstats()}
    assert counts[called.__code__] == 50, counts


x = torch.ones(64, 64, device="cuda")
w = torch.ones(64, 64, device="cuda", requires_grad=True)
x.add_(1)
kind, count = sys.argv[1], int(sys.argv[2])
if kind == "calls":
    call(count)
elif kind == "views":
    for _ in range(count):
        x.view(-1)
elif kind == "plain":
    for _ in range(count):
        x.mul_(1)
elif kind == "modules":
    module = torch.nn.Identity()
    for _ in range(count):
        module(x)
elif kind in ("convolution", "group norm", "batch norm", "batch norm in training"):
    picture = torch.rand(2, 4, 8, 8, device="cuda")
    four = torch.rand(4, device="cuda")
    for _ in range(count):
        if kind == "convolution":
            torch.conv2d(picture, picture)
        elif kind == "group norm":
            torch.native_group_norm(picture, four, four, 2, 4, 64, 2, 1e-5)
        else:
            torch.native_batch_norm(
                picture, four, four, four, four, kind.endswith("training"), 0.1, 1e-5
            )
elif kind == "events":
    event = torch.cuda.Event(enable_timing=True)
    for _ in range(count):
        event.record()
elif kind == "log_sum_exp":
    for _ in range(count):
        x.logsumexp(0)
elif kind == "recorded":
    for _ in range(count):
        w.mul(1)
elif kind == "collected":

    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            called()

    import gc

    for _ in range(10):
        Cycle()
    if count:
        gc.collect()
elif kind == "streams":
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    for _ in range(count):
        with torch.cuda.stream(side):
            event.record()
        side.wait_stream(torch.cuda.default_stream())
        event.wait()
elif kind in ("captures", "replays"):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1 if kind == "replays" else count):
            x.mul_(1)
    for _ in range(count if kind == "replays" else 1):
        graph.replay()
elif kind in ("buckets", "parameters"):
    import torch.distributed as dist

    dist.init_process_group("nccl")
    model = torch.nn.ParameterList(w.detach().requires_grad_() for _ in range(count))
    parameters = list(model)
    buckets = [[index] for index in range(count)]
    if kind == "buckets":
        dist.Reducer(parameters, buckets, [1 << 20], dist.group.WORLD)
elif kind == "replaced":
    for _ in range(count):
        x.data = x.data
        x.untyped_storage().resize_(x.untyped_storage().nbytes())
        torch.set_autocast_enabled("cuda", False)
elif kind == "ranges":
    for _ in range(count):
        torch.cuda.nvtx.range_push("layer")
        torch.cuda.nvtx.range_pop()
elif kind == "casts":
    with torch.autocast("cuda", torch.float16):
        for _ in range(count):
            torch.mm(x, x)
elif kind in ("sums", "uncast"):
    half = x.half()
    with torch.autocast("cuda", torch.float16, enabled=kind == "sums"):
        for _ in range(count):
            torch.sum(half)
            torch.norm(half)
elif kind == "backward":
    (w * 1).sum().backward()
elif kind == "foreach":
    torch._foreach_add_([x] * count, 1)
elif kind == "foreach of a number":
    torch._foreach_pow(2.0, [x] * count)
elif kind == "reads":
    for _ in range(count):
        x[0, 0].item()
elif kind == "messages":
    import multiprocessing

    queue: "multiprocessing.Queue[object]" = multiprocessing.Queue()
    queue.put({"batch": [torch.ones(2) for _ in range(count)]})
    queue.get()
elif kind == "loaded":
    from torch.utils.data import DataLoader

    samples = [(torch.ones(8), 1)] * (4 * count)
    for _ in DataLoader(samples, batch_size=4, num_workers=1):
        x.add_(1)
elif kind == "segments":
    kept = [torch.empty(1 << 25, device="cuda") for _ in range(count)]
elif kind == "imports":
    sys.modules.pop("colorsys", None)
    if count:
        import colorsys  # noqa: F401
elif kind == "freed":
    for _ in range(count):
        x * 1
elif kind == "compared":
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    first, second = (DTensorSpec(mesh=None, placements=(Replicate(),)) for _ in "ab")
    for _ in range(count):
        if first != second:
            raise AssertionError
elif kind == "in_c":
    lock, again = threading.Lock(), threading.RLock()
    simple: Any = SimpleQueue()
    for _ in range(count):
        time.monotonic(), time.perf_counter(), time.perf_counter_ns(), time.process_time()
        time.localtime(), datetime.datetime.now(), os.times(), os.getpid()
        time.sleep(0)
        with lock, again:
            simple.put(again)
        simple.get()
        select.select([], [], [], 0)
elif kind == "environment":
    everything = {**os.environ, **dict(os.environ.items())}
    everything |= os.environ.copy()
    assert list(os.environ) == list(os.environ.keys()) == list(everything)
    assert [os.environ[name] for name in os.environ] == list(os.environ.values())
    os.environ.clear()
    os.environ.update(everything)
    assert os.environ == everything
    for _ in range(count):
        os.environ.get("PATH")
elif kind == "protocol":
    members = {f"member_{number}": print for number in range(9)}
    wanted: Any = runtime_checkable(
        new_class("Wanted", (Protocol,), {}, lambda ns: ns.update(members))
    )
    del members[f"member_{count}"]
    assert not isinstance(type("Lacks", (), members)(), wanted)
elif kind == "clock":
    print(time.perf_counter_ns(), time.monotonic_ns())
elif kind == "profiled":
    profiled()
    assert sys.getprofile() is None
    # Calls are counted again from the next operation on.
    x.add_(1)
    call(count)
x.add_(1)
