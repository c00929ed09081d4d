"""``torch.set_default_device("cuda")``, and inference mode around graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.torch_bridge.running import simulated


@pytest.mark.parametrize("data", [True, False])
def test_a_default_device_is_the_programs_and_not_the_bridges(data: bool, tmp_path: Path) -> None:
    simulated("default_device.py", "data" if data else "no data", tmp_path, nprocs=2, data=data)
