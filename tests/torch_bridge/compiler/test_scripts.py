"""What a script asks a tensor is answered as PyTorch answers it on a device of that kind."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import real, simulated  # noqa: E402


def values(product: int) -> list[list[int]]:
    return [[product] * 2, [product] * 2, [1, 1], [2, 2]]


def test_scripts_are_told_the_device_that_the_program_sees(tmp_path: Path) -> None:
    path = tmp_path / "asked.pt"
    # The oracle of the branches and values: PyTorch itself, on its CPU.
    real("scripts_ask.py", "cpu", path)
    cpu = torch.device("cpu")
    expected = torch.load(path, weights_only=False)
    simulated("scripts_ask.py", "cpu", path)
    assert torch.load(path, weights_only=False) == expected
    assert expected == [[(cpu, cpu, False, True, -1)] * 3, values(3), [*[cpu] * 12, (cpu, False)]]
    device = torch.device("cuda", 1)
    simulated("scripts_ask.py", "cuda:1", path)
    assert torch.load(path, weights_only=False) == [
        [(device, device, True, False, 1)] * 3,
        values(2),
        [device, device, cpu, cpu, *[device] * 4, cpu, cpu, *[device] * 2, (device, True)],
    ]
