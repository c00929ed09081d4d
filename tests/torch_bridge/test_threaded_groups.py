"""Ranks that are threads of one process, as in PyTorch's own tests of DTensor and FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


def test_pytorchs_tests_with_a_thread_per_rank_run_on_devices(tmp_path: Path) -> None:
    # PyTorch's group of threads copies on streams that no thread makes wait for another.
    context = simulated("threaded_groups.py", tmp_path / "output", allow="stream-races")
    assert any(instance.template.name == "aten.mm" for instance in context.op_log.instances)
    # Nobody waited for a timeout.
    assert context.run.simulation.now_ps < 10**12


@pytest.mark.parametrize("nprocs", [1, 2])
def test_each_thread_has_a_current_device_and_streams(nprocs: int) -> None:
    simulated("threads.py", "current_devices", nprocs=nprocs)


def test_a_key_that_is_set_while_a_rank_catches_up_is_found() -> None:
    simulated("threads.py", "key_that_is_waited_for", nprocs=2)
