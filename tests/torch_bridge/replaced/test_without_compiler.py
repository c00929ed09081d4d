"""PyTorch's compiler is imported when a program asks for something of it, and not before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.tiers import of_campaigns
from tests.torch_bridge.running import PROGRAMS, simulated

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("asks", [of_campaigns([]), ["asks"]])
def test_the_compiler_comes_when_it_is_asked_for_and_is_itself_after_the_run(
    asks: list[str],
) -> None:
    command = [sys.executable, str(PROGRAMS / "compiler_after_a_run.py"), *asks]
    environ = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("collects_own")
def test_nothing_keeps_a_run_that_is_over(tmp_path: Path) -> None:
    """What searches all modules meets the one that stands in for the compiler, and may keep it."""
    program = tmp_path / "program.py"
    program.write_text("import torch\ntorch.ones(2, device='cuda') + 1\n")
    runs = [weakref.ref(simulated(program).run) for _ in range(2)]
    gc.collect()
    assert [run() for run in runs] == [None, None]
