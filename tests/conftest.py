"""Options and fixtures that every test directory shares."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# The machines are shared: an example's time says nothing. CI repeats the same examples.
settings.register_profile("kernbench", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kernbench")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--adr", metavar="NNNN", help="run only the tests that hold decisions of ADR NNNN"
    )


def marked_decisions(item: pytest.Item) -> list[str]:
    """Return the decisions, such as 0027-D0.5, that a test is marked with."""
    return [decision for mark in item.iter_markers("adr") for decision in mark.args]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[ALL_ITEMS] = list(items)
    number = config.getoption("--adr")
    if number is None:
        return
    number = str(number).zfill(4)
    kept = [
        item
        for item in items
        if any(decision.split("-")[0] == number for decision in marked_decisions(item))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


ALL_ITEMS: pytest.StashKey[list[pytest.Item]] = pytest.StashKey()
