"""What is marked as a campaign runs where it is asked for, and in which order tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import run_forked

ROOT = Path(__file__).parents[1]

CAMPAIGN = "test_most_published_products_are_among_the_best_modeled_ones"


def collected(file: str, *options: str) -> list[str]:
    """Return the tests of a file that would run, in order."""
    done = run_forked("pytest", "--collect-only", "-q", file, *options, cwd=ROOT)
    return done.stdout.partition("\n\n")[0].splitlines()


@pytest.mark.parametrize(
    ("options", "is_run"),
    [
        ([], False),
        (["--campaigns"], True),
        pytest.param(["--adr", "0001"], False, marks=pytest.mark.campaign),
    ],
)
def test_campaigns_run_where_asked_for(options: list[str], is_run: bool) -> None:
    names = [each.rpartition("::")[2] for each in collected("tests/test_tuner_truth.py", *options)]
    assert (CAMPAIGN in names) is is_run


@pytest.mark.campaign
def test_order_can_be_turned_round() -> None:
    forwards = collected("tests/test_tiers.py")
    assert len(forwards) > 1
    assert collected("tests/test_tiers.py", "--backwards") == forwards[::-1]
