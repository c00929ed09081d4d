"""Operands on a host and on a device are refused where CUDA refuses them, as fake tensors do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from tests.torch_bridge.programs.mixed_devices import ASSIGNED, CASES, outcome  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

KNOWN = {
    # CUDA takes indices from the host ("indices should be either on cpu or on the same device as
    # the indexed tensor"), fake tensors do not.
    "index_of_device": ["cuda", "cpu"],
    "mask_of_host": ["cuda", "cpu"],
    # Of these PyTorch documents where the result is; on fake tensors they do not run.
    "copy_into_views": ["cpu", "cpu"],
    "powers": ["cuda", "cpu"],
    "unpacked": ["cuda", "cpu"],
    "padded": ["cuda", "cpu"],
}


def test_host_and_device_mix_where_they_do_on_a_gpu(tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    simulated("mixed_devices.py", saved)
    found, assigned = json.loads(saved.read_text())
    expected = {}
    for name, case in CASES.items():
        # Values are unknown there: with a given number of classes, one_hot reads none.
        with FakeTensorMode(allow_non_fake_inputs=True):
            device, host = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
            expected[name] = outcome(case, device, host)
    expected |= KNOWN
    assert found == expected
    assert sum(each[0] == "refused" for each in found.values()) > len(found) // 2
    assert found["one_hot"] == ["cuda", "cpu"]
    for name, case in ASSIGNED.items():
        on_host = torch.ones(2, 3), torch.ones(2, 3)
        values = [case(*on_host).tolist(), *(each.tolist() for each in on_host)]
        assert assigned[name] == values, name
