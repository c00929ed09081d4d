"""What is marked as a campaign runs where it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CAMPAIGN = "test_most_published_products_are_among_the_best_modeled_ones"


@pytest.mark.parametrize(
    ("options", "is_run"), [([], False), (["--campaigns"], True), (["--adr", "0001"], False)]
)
def test_campaigns_run_where_asked_for(options: list[str], is_run: bool) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/test_tuner_truth.py"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (CAMPAIGN in done.stdout) is is_run


def test_order_can_be_turned_round() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/test_tiers.py"]
    forwards, backwards = (
        subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=True)
        .stdout.partition("\n\n")[0]
        .splitlines()
        for options in ([], ["--backwards"])
    )
    assert len(forwards) > 1
    assert backwards == forwards[::-1]
