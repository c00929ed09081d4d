"""Fake tensors of a program: on the devices that it names, as in PyTorch itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from tests.torch_bridge.running import real, simulated  # noqa: E402

PROGRAM = "fake_tensors.py"


def test_fake_tensors_are_where_a_program_makes_them(tmp_path: Path) -> None:
    expected, saved = tmp_path / "expected.json", tmp_path / "found.json"
    real(PROGRAM, "cpu", expected)
    simulated(PROGRAM, "cuda", saved)
    assert json.loads(saved.read_text()) == json.loads(expected.read_text())


def test_a_rank_does_not_wait_for_others_among_fake_tensors(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "dist.init_process_group('nccl')\n"
        "with FakeTensorMode():\n"
        "    shape = torch.ones(2, 3, device='cuda').t().shape\n"
        "dist.barrier()\n"
        "assert shape == (3, 2)\n"
        "with FakeTensorMode():\n"
        "    dist.barrier()\n"
    )
    with pytest.raises(SpawnException) as raised:
        simulated(program, nprocs=2)
    place = r"waits for others inside of FakeTensorMode, at program\.py:9"
    assert raised.group_contains(UsageError, match=place)
