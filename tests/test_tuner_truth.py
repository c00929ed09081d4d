"""Published configurations against modeled times."""

from __future__ import annotations

import pytest

from tools.tuner_truth import NEAR, TOP, read_rows, score


@pytest.mark.slow
def test_most_published_configurations_are_among_the_best_modeled_ones() -> None:
    rows = read_rows()
    assert len(rows) == 88
    scores = [score(each, 0.04) for each in rows[:48:8]]
    assert sum(each.ahead <= TOP for each in scores) >= 5
    assert sum(each.slower <= NEAR for each in scores) >= 5
    # None is refused: each ran on its device.
    assert max(each.slower for each in scores) < 2
