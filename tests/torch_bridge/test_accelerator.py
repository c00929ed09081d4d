"""``torch.accelerator``: what programs ask that do not say which kind of device they run on."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.torch_bridge.running import simulated


def test_all_of_it_answers_for_simulated_devices() -> None:
    simulated("accelerator.py")
