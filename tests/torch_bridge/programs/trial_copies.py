"""Inductor copies arguments to the host, where they fill the device, to try candidates on them."""

from pathlib import Path
from resource import getpagesize
from types import SimpleNamespace

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

SIZE_BYTES = 1 << 28


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


torch.compile(lambda x: x + 1)(torch.zeros(4, device="cuda"))
filled = torch.empty(SIZE_BYTES, dtype=torch.uint8, device="cuda")
before = resident_bytes()
tuned = SimpleNamespace(
    optimize_mem=True, mutated_arg_names=["x"], fn=SimpleNamespace(arg_names=["x"])
)
copies = CachingAutotuner.copy_args_to_cpu_if_needed(tuned, filled)
assert resident_bytes() - before < SIZE_BYTES // 8
source, copy = copies["x"]
assert source is filled
assert copy.device.type == "cpu"
assert copy.nbytes == SIZE_BYTES
# A program's own copy is of zeros.
host = torch.ones(1 << 20, dtype=torch.uint8)
host.copy_(filled[: 1 << 20])
assert not host.any()
