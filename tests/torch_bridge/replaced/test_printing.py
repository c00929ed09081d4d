"""Printing a tensor of a device waits for it, and prints what PyTorch prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = """
import json, sys, time, torch
made = []
for kind in ("float32", "float16", "int64", "bool", "complex64"):
    values = torch.arange(-2, 1200).to(getattr(torch, kind)).reshape(-1, 2)
    for each in (values, values[3], values[0, 0], values[:0]):
        made.append([repr(each), repr(each.cuda())])
a = torch.ones(2, device="cuda")
torch.cuda.synchronize()
began = time.perf_counter()
torch.cuda._sleep(10_000_000)
b = a + 1
asked = time.perf_counter() - began
str(b)
shown = time.perf_counter() - began
with open(sys.argv[1], "w") as file:
    json.dump([made, asked, shown], file)
"""


def printed(folder: Path, *, data: bool) -> list[Any]:
    (folder / "program.py").write_text(PROGRAM)
    simulated(folder / "program.py", folder / "out.json", machine="h100-sxm", data=data)
    out: list[Any] = json.loads((folder / "out.json").read_text())
    return out


def test_it_prints_what_is_on_the_host_with_the_device(tmp_path: Path) -> None:
    texts = printed(tmp_path, data=True)[0]
    assert len(texts) == 20
    for host, device in texts:
        words = device.replace("device='cuda:0'", "").replace(" ", "").replace(",", "")
        assert words.replace("\n", "") == host.replace(" ", "").replace(",", "").replace("\n", "")
        assert "device='cuda:0'" in device


@pytest.mark.parametrize("data", [True, False])
def test_the_host_waits_until_it_is_computed(tmp_path: Path, data: bool) -> None:
    _, asked_s, shown_s = printed(tmp_path, data=data)
    # The cycles that it sleeps before, at the highest clock of the device.
    least_s = 10_000_000 / 1.98e9
    assert asked_s < least_s < shown_s
