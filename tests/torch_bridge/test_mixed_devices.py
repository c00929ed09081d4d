"""Operands on a host and on a device are refused where CUDA refuses them, as fake tensors do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from tests.torch_bridge.programs.mixed_devices import CASES, outcome  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

BY_HOST_INDICES = ("index_of_device", "mask_of_host")
"""CUDA takes indices from the host ("indices should be either on cpu or on the same device as the
indexed tensor"), fake tensors do not."""


def test_host_and_device_mix_where_they_do_on_a_gpu(tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    simulated("mixed_devices.py", saved)
    found = json.loads(saved.read_text())
    expected = {}
    for name, case in CASES.items():
        # Values are unknown there: with a given number of classes, one_hot reads none.
        with FakeTensorMode(allow_non_fake_inputs=True):
            device, host = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
            expected[name] = outcome(case, device, host)
    expected |= {key: ["cuda", "cpu"] for key in BY_HOST_INDICES}
    assert found == expected
    assert sum(each[0] == "refused" for each in found.values()) > len(found) // 2
    assert found["one_hot"] == ["cuda", "cpu"]
