"""What runs every day, and what only campaigns run: chosen where a test is written (ADR-0263).

``make test`` runs a few cases of each mechanism and a third of a property's examples;
``make test-all`` runs all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

PROFILE = "kernbench"
"""Settings of all properties."""
MOST_DAILY = 20
"""Examples of a property that says no number, every day."""
MOST = 100
"""And in campaigns."""
_SHARE, _LEAST = 3, 5


def of_campaigns(*values: Any, **named: Any) -> Any:
    """Return a parameter of a test that campaigns alone run."""
    return pytest.param(*values, marks=pytest.mark.campaign, **named)


def daily(*chosen: Any, of: Iterable[Any]) -> list[Any]:
    """Return parameters, of which those that are chosen run every day and the others in campaigns.

    >>> [len(case.marks) for case in daily("b", of=("a", "b"))]
    [1, 0]
    """
    cases = list(of)
    unknown = [item for item in chosen if item not in cases]
    if unknown or not chosen:
        raise ValueError(f"must be some of {cases}, but got {list(chosen)}")
    return [pytest.param(item) if item in chosen else of_campaigns(item) for item in cases]


def examples(number: int, **others: Any) -> settings:
    """Return settings of a property that tries so many examples in campaigns.

    Every day it tries a third of them, at least five: the same ones each time.
    """
    # Not those of now: PyTorch's own tools for tests load a profile of theirs.
    if settings.get_profile(PROFILE).max_examples < MOST:
        number = min(number, max(number // _SHARE, _LEAST))
    return settings(max_examples=number, **others)
