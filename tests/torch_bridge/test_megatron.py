"""The tool that runs megatron-core's own tests, on a checkout that is made up."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import PROGRAMS  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.slow
def test_what_passes_is_told_from_what_does_not_and_from_what_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit_tests" / "tensor_parallel"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    shutil.copy(PROGRAMS / "megatron_tests.py", folder / "test_made_up.py")
    listed = tmp_path / "list"
    listed.write_text("test_made_up.py::test_sum\ntest_made_up.py::test_gone\n")
    tool = ROOT / "tools" / "megatron_tests.py"
    command = [sys.executable, str(tool), str(tmp_path), "--ranks", "2", "--list", str(listed)]
    done = subprocess.run(
        [*command, "--update"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(("pass", "FAIL", "lost"))] == [
        "pass test_made_up.py::test_sum",
        "pass test_made_up.py::test_values[0]",
        "pass test_made_up.py::TestSetup::test_name",
        "FAIL test_made_up.py::test_values[1]",
        "lost test_made_up.py::test_gone",
    ]
    assert "3 pass, 2 of them not listed, 1 are lost" in lines
    assert listed.read_text().split() == [
        "test_made_up.py::TestSetup::test_name",
        "test_made_up.py::test_gone",
        "test_made_up.py::test_sum",
        "test_made_up.py::test_values[0]",
    ]


def test_the_list_names_every_test_once_in_order() -> None:
    names = (Path(__file__).parent / "megatron.txt").read_text().split()
    assert len(names) > 10
    assert names == sorted(set(names))
