"""Simulated processes compute what real ones with gloo do, to the bit in groups of two."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import assert_same_bits, real, results, simulated  # noqa: E402


@pytest.mark.slow
def test_hand_written_tensor_parallelism_has_the_bits_of_real_processes(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    simulated("tp_layers.py", ours)
    real("tp_layers.py", theirs)
    found, expected = results(ours), results(theirs)
    assert len(expected) == 2
    assert assert_same_bits(found, expected) == 12
