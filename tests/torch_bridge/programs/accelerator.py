"""The whole of torch.accelerator, on four devices."""

import warnings
from typing import Any

import torch
from torch import accelerator

first, second = torch.device("cuda", 0), torch.device("cuda", 1)
assert accelerator.is_available()
assert accelerator.current_accelerator() == torch.device("cuda")
assert accelerator.device_count() == 4
assert torch.get_device_module(accelerator.current_accelerator()) is torch.cuda

with accelerator.device_index(2):
    assert accelerator.current_device_index() == 2 == torch.cuda.current_device()
    assert torch.ones(2, device="cuda").get_device() == 2
with accelerator.device_index(None):
    assert accelerator.current_device_index() == 0
for asked, index in ((1, 1), ("cuda:3", 3), (first, 0), (-1, 0)):
    accelerator.set_device_index(asked)
    assert torch.cuda.current_device() == index
for wrong, words in ((7, "cuda:7 does not exist"), ("cpu", "doesn't match"), ("cuda", "index")):
    text = ""
    try:
        accelerator.set_device_index(wrong)
    except (RuntimeError, ValueError) as error:
        text = str(error)
    assert words in text
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accelerator.set_device_idx(2)
    assert accelerator.current_device_idx() == 2
    accelerator.set_device_idx(0)

# Each device has a current stream.
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    with accelerator.device_index(1):
        assert accelerator.current_stream() != stream
        torch.cuda.set_device(0)
        assert accelerator.current_stream() == stream
        torch.cuda.set_device(1)
    assert accelerator.current_stream() == accelerator.current_stream(0) == stream
    with torch.cuda.stream(torch.cuda.Stream(second)):
        torch.cuda.set_device(0)
        assert accelerator.current_stream() == stream
other = torch.Stream(device=second)
accelerator.set_stream(other)
assert accelerator.current_device_index() == 1
assert accelerator.current_stream() == other
accelerator.set_device_index(0)

x = torch.ones(1 << 20, device="cuda")
start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
start.record()
x = x + 1
end.record()
for device in (None, 1, "cuda:0", first):
    accelerator.synchronize(device)
assert start.elapsed_time(end) > 0
size = x.nbytes
for device in ((), (0,), ("cuda:0",), (first,)):
    assert accelerator.memory_allocated(*device) == size
assert accelerator.memory_allocated(1) == 0
assert accelerator.max_memory_allocated() == 2 * size
assert size <= accelerator.memory_reserved() <= accelerator.max_memory_reserved()
del x
accelerator.empty_cache()
accelerator.empty_host_cache()
accelerator.reset_peak_memory_stats()
accelerator.reset_accumulated_memory_stats()
assert accelerator.max_memory_allocated() == accelerator.memory_reserved() == 0
assert accelerator.memory_stats()["allocated_bytes.all.current"] == 0

# Newer releases have more.
if hasattr(accelerator, "get_memory_info"):
    free, whole = accelerator.get_memory_info()
    assert 0 < free <= whole
if hasattr(accelerator, "get_device_capability"):
    text = accelerator.get_device_capability("cuda:0")["supported_dtypes"]
    assert torch.bfloat16 in text
    assert torch.qint8 not in text
if hasattr(accelerator, "Graph"):
    graph, y = accelerator.Graph(), torch.zeros(4, device="cuda")
    with torch.Stream(), graph:
        y += 1
    graph.replay()
    graph.replay()
    assert y.tolist() == [2] * 4
    accelerator.Graph(pool=graph.pool())
    graph.reset()

# A number alone is a device, for which C++ asks what PyTorch was built for.
assert torch.device(0) == torch.device("cuda", 0) == torch.zeros(1, device=torch.device(0)).device
assert isinstance(torch.device(torch.tensor(1)), torch.device)
no_device: Any
for no_device in (-2, "nowhere", 1.5):
    try:
        torch.device(no_device)
    except (RuntimeError, TypeError):
        continue
    raise AssertionError(f"torch.device({no_device!r}) is no device")
