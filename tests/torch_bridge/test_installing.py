"""How PyTorch gets to those who test the bridge, and to nobody else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def recipe(target: str) -> str:
    """Return what make would do for a target in a clean clone."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.adr("0061-D1")
def test_the_tests_install_the_group_and_the_other_targets_do_not() -> None:
    assert "--group torch" in recipe("test")
    for target in ("test-fast", "lint", "demo"):
        assert "torch" not in recipe(target).replace("torch_bridge", "")


@pytest.mark.adr("0061-D1")
def test_group_and_extra_are_the_same_and_no_index_is_named() -> None:
    assert (
        PROJECT["dependency-groups"]["torch"]
        == PROJECT["project"]["optional-dependencies"]["torch"]
    )
    assert not [item for item in PROJECT["project"]["dependencies"] if item.startswith("torch")]
    assert "index" not in recipe("test")


@pytest.mark.adr("0061-D2")
def test_without_torch_the_bridges_tests_skip_and_its_modules_are_left_out() -> None:
    code = (
        "import sys, importlib.util as u; found = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'torch' else found(name, *a);"
        "sys.modules['torch'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    names = ["-p", "no:cacheprovider", "tests/torch_bridge/test_processes.py"]
    command = [sys.executable, "-c", code, "-q", *names, "src/kernbench/torch_bridge"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "skipped in" in done.stdout
    assert "error" not in done.stdout
    assert "passed" not in done.stdout
