"""Which examples of a property a run tries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiers import PROFILE

ROOT = Path(__file__).parents[1]
DRAWS = """
from hypothesis import given, strategies as st

@given(st.lists(st.integers()))
def test_draws(numbers):
    print("drawn", numbers)
"""


def drawn(tmp_path: Path, *options: str) -> list[str]:
    test = tmp_path / "test_draws.py"
    test.write_text(DRAWS)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options]
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    environ["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [*command, str(test)], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "drawn" in line]


@pytest.mark.adr("0061-D5")
def test_this_run_chooses_its_examples_at_random_with_a_seed_only(
    pytestconfig: pytest.Config,
) -> None:
    has_seed = pytestconfig.getoption("--hypothesis-seed") is not None
    assert settings.get_profile(PROFILE).derandomize is not has_seed


@pytest.mark.campaign
@pytest.mark.adr("0061-D5")
@pytest.mark.slow
def test_every_run_tries_the_same_examples_but_with_a_seed(tmp_path: Path) -> None:
    as_ever = drawn(tmp_path)
    assert drawn(tmp_path) == as_ever
    assert drawn(tmp_path, "--hypothesis-seed=7") != as_ever


@pytest.mark.adr("0061-D6")
def test_a_campaign_runs_the_properties_with_the_seeds_it_is_given() -> None:
    command = ["make", "--dry-run", "fuzz-properties", "SEEDS=7 8"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "for seed in 7 8" in said
    assert "-m hypothesis --hypothesis-seed=$seed" in said
