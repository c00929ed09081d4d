"""``torch.compile`` where nothing is compiled: what it returns looks as PyTorch's own does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.torch_bridge.running import simulated

ROOT = Path(__file__).parents[3]


def test_modules_are_wrapped_as_by_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_COMPILE", "eager")
    simulated("compiled.py")


@pytest.mark.campaign
@pytest.mark.slow
def test_modules_are_wrapped_as_by_the_compiler_whether_it_is_there_or_not() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_bridge.programs.compiled_twice"],
        cwd=ROOT,
        env=os.environ | {"KERNBENCH_COMPILE": "eager", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
