"""Published configurations against modeled times."""

from __future__ import annotations

import pytest

from tools.tuned_kernels import AnyTuned, TunedExperts, read_experts, read_products
from tools.tuner_truth import NEAR, TOP, Score, sample, score


def scores_of(rows: list[AnyTuned], num_configurations: int = 45) -> list[Score]:
    scores = [score(row, num_configurations) for row in rows]
    # None is refused: each ran on its device.
    assert max(score.slower for score in scores) < 2
    return scores


def test_published_configurations_are_near_the_best_of_a_few_modeled_ones() -> None:
    rows: list[AnyTuned] = [*read_products()[::88], *read_experts("seen")[::80]]
    assert all(score.slower <= NEAR for score in scores_of(rows, 12))


@pytest.mark.campaign
@pytest.mark.slow
def test_most_published_products_are_among_the_best_modeled_ones() -> None:
    rows = read_products()
    assert len(rows) == 88
    scores = scores_of([*rows[::8]])
    assert len(scores) == 11
    assert sum(item.ahead <= TOP for item in scores) >= 10
    assert sum(item.slower <= NEAR for item in scores) >= 8


@pytest.mark.campaign
@pytest.mark.slow
def test_most_published_mixtures_are_among_the_best_modeled_ones() -> None:
    seen, apart = read_experts("seen"), read_experts("apart")
    assert len(seen) == len(apart) == 42
    scores = scores_of([*seen[:40:5]])
    assert sum(item.ahead <= TOP for item in scores) >= 6
    assert sum(item.slower <= NEAR for item in scores) >= 6


def test_a_sample_has_the_published_one_first_and_its_neighbours() -> None:
    for tuned in read_experts("seen"):
        result = sample(tuned, 45, 0)
        assert result[0] == tuned.best
        assert len(result) == len(set(result)) >= 25
        assert result == sample(tuned, 45, 0)


def test_tuners_draw_their_gates_at_random() -> None:
    tuned = TunedExperts("h100-sxm", "bfloat16", read_experts("seen")[0].best, 0, 64, 8, 1, 1, 2)
    rows = tuned.rows
    assert sum(rows) == 64 * 2
    assert len(rows) == 8
    assert max(rows) > 64 * 2 // 8
