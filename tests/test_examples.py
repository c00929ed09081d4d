"""Which examples of a property a run tries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DRAWS = """
from hypothesis import given, strategies as st

@given(st.lists(st.integers()))
def test_draws(numbers):
    print("drawn", numbers)
"""


def drawn(tmp_path: Path, ci: str) -> list[str]:
    test = tmp_path / "test_draws.py"
    test.write_text(DRAWS)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(test)]
    environ = os.environ | {"CI": ci}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "drawn" in line]


@pytest.mark.adr("0061-D5")
@pytest.mark.slow
def test_ci_tries_the_same_examples_twice(tmp_path: Path) -> None:
    assert drawn(tmp_path, "1") == drawn(tmp_path, "1")
    assert drawn(tmp_path, "") != drawn(tmp_path, "")


@pytest.mark.adr("0061-D5")
def test_ci_says_that_it_is_ci() -> None:
    assert "export CI=1" in (ROOT / ".ci/run").read_text().splitlines()


@pytest.mark.adr("0061-D6")
def test_a_campaign_runs_the_properties_with_the_seeds_it_is_given() -> None:
    command = ["make", "--dry-run", "fuzz-properties", "SEEDS=7 8"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "for seed in 7 8" in said
    assert "-m hypothesis --hypothesis-seed=$seed" in said
