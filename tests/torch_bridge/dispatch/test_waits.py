"""The host waits for the sizes of results that are numbers on the device, as CUDA's does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

SOURCE = """
import json, sys, time
import torch

a = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda") if not DATA else None
b = torch.zeros(2048, 2048, device="cuda")
mask = torch.arange(64, device="cuda").remainder(2).bool()
x, counts = torch.arange(64, device="cuda"), torch.ones(64, dtype=torch.long, device="cuda")
places = torch.arange(8, device="cuda")

def puts(value):
    x[mask] = value

calls = {
    "nonzero": lambda: mask.nonzero(),
    "where": lambda: torch.where(mask),
    "mask": lambda: x[mask],
    "masked_select": lambda: x.masked_select(mask),
    "unique": lambda: torch.unique(x),
    "unique_consecutive": lambda: torch.unique_consecutive(x),
    "bincount": lambda: torch.bincount(x),
    "repeats": lambda: torch.repeat_interleave(x, counts),
    "put": lambda: puts(x[:32] + 1),
    "free: put one": lambda: puts(1),
    "free: repeats": lambda: torch.repeat_interleave(x, counts, output_size=64),
    "free: places": lambda: x[places],
    "free: two": lambda: torch.where(mask, x, x + 1),
    "free: masked_fill": lambda: x.masked_fill(mask, 0),
}
waited = {}
for name, call in calls.items():
    call()
    torch.cuda.synchronize()
    # Half a millisecond of work is before it.
    for _ in range(30):
        b.zero_() if DATA else a @ a
    begun = time.perf_counter()
    call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    waited[name] = returned - begun > 0.5 * (time.perf_counter() - begun)
with open(sys.argv[1], "w") as file:
    json.dump(waited, file)
"""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_the_host_waits_for_sizes_that_are_on_the_device(tmp_path: Path, data: bool) -> None:
    program, result = tmp_path / "program.py", tmp_path / "found.json"
    program.write_text(SOURCE.replace("DATA", str(data)))
    # No host time: what passes is the device's.
    simulated(program, result, machine="ahbm", data=data)
    waited = json.loads(result.read_text())
    assert waited == {name: not name.startswith("free") for name in waited}
