"""PyTorch's compiler is imported when a program asks for something of it, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.tiers import of_campaigns
from tests.torch_bridge.running import PROGRAMS

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
