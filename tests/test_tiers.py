"""What runs every day and what in campaigns alone, and in which order tests run (ADR-0263)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import settings

from tests.forked import run_forked
from tests.tiers import MOST, MOST_DAILY, PROFILE, daily, examples, of_campaigns

ROOT = Path(__file__).parents[1]

TESTS = sorted((ROOT / "tests").rglob("*.py"))

CAMPAIGN = "test_order_can_be_turned_round"


def collected(file: str, *options: str) -> list[str]:
    """Return the tests of a file that would run, in order."""
    done = run_forked("pytest", "--collect-only", "-q", file, *options, cwd=ROOT)
    return done.stdout.partition("\n\n")[0].splitlines()


@pytest.mark.parametrize(
    ("options", "is_run"),
    [
        ([], False),
        (["--campaigns"], True),
        of_campaigns(["--adr", "0001"], False),
    ],
)
def test_campaigns_run_where_asked_for(options: list[str], is_run: bool) -> None:
    names = [item.rpartition("::")[2] for item in collected("tests/test_tiers.py", *options)]
    assert (CAMPAIGN in names) is is_run


@pytest.mark.campaign
def test_order_can_be_turned_round() -> None:
    forwards = collected("tests/test_tiers.py")
    assert len(forwards) > 1
    assert collected("tests/test_tiers.py", "--backwards") == forwards[::-1]


@pytest.mark.adr("0263-D1")
def test_of_the_cases_those_that_are_chosen_run_every_day() -> None:
    cases = daily("b", "c", of=("a", "b", "c"))
    assert [item.values for item in cases] == [("a",), ("b",), ("c",)]
    assert [[mark.name for mark in item.marks] for item in cases] == [["campaign"], [], []]


@pytest.mark.parametrize("chosen", [(), ("d",), ("a", "d")])
def test_what_is_no_case_and_nothing_cannot_be_chosen(chosen: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be some of \['a', 'b'\], but got"):
        daily(*chosen, of=("a", "b"))


@pytest.mark.adr("0263-D1")
def test_cases_of_campaigns_are_chosen_in_one_way() -> None:
    others = [path for path in TESTS if path.name not in ("tiers.py", "test_tiers.py")]
    marked = [path for path in others if "marks=pytest.mark.campaign" in path.read_text()]
    assert not marked, "choose cases by daily(...), or of_campaigns(...), of tests/tiers.py"


@pytest.mark.adr("0263-D2")
@pytest.mark.parametrize(("number", "every_day"), [(90, 30), (40, 13), (10, 5), (4, 4)])
def test_a_property_tries_a_third_of_its_examples_every_day(number: int, every_day: int) -> None:
    most = settings.get_profile(PROFILE).max_examples
    assert examples(number).max_examples == (number if most == MOST else every_day)
    assert most in (MOST, MOST_DAILY)


@pytest.mark.adr("0263-D2")
def test_numbers_of_examples_are_those_of_campaigns() -> None:
    others = [path for path in TESTS if path.name not in ("tiers.py", "test_tiers.py")]
    numbered = [
        path for path in others if re.search(r"settings\([^)]*max_examples", path.read_text())
    ]
    assert not numbered, "say examples(40) of tests/tiers.py in place of settings(max_examples=40)"
