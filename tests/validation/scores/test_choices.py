"""Pairs of variants and how they are ordered; ranks of configurations and what a choice costs."""

from __future__ import annotations

import json

import pytest

from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.predictor import Answer
from kernbench.accuracy.rows.reference import Row
from kernbench.accuracy.score import Scored
from validation.scores.choices import pairs_by_distance, ranks_of


def configuration(measured: float, modeled: float, block: int, size: int = 256) -> Scored:
    fields = {
        "branch": "main",
        "kernel": "matmul",
        "params": json.dumps({"M": size, "BLOCK_M": block, "num_warps": 4}),
    }
    row = Row(Category.PROGRAMS, "MI300X", "matmul", "", "geak", measured, fields, "rows.csv", 2)
    return Scored(row, Answer(modeled))


@pytest.mark.adr("0252-D1")
def test_pairs_are_ordered_right_by_how_far_apart_they_are_modeled() -> None:
    pairs = pairs_by_distance(
        [[(100, 100), (110, 101)], [(100, 101), (110, 100)], [(1, 1), (4, 3)]]
    )
    assert pairs is not None
    assert pairs["pairs"] == 3
    assert pairs["right"] == [[1.02, 2, 0.5], [None, 1, 1.0]]


@pytest.mark.adr("0252-D1")
def test_errors_that_variants_share_are_no_errors_of_their_order() -> None:
    """All three are modeled ten times too fast; of their ratios none is off."""
    pairs = pairs_by_distance([[(10, 1), (20, 2), (40, 4)]])
    assert pairs is not None
    assert pairs["within"] == pytest.approx(1.0)
    assert pairs_by_distance([[(1, 1)]]) is None


@pytest.mark.adr("0251-D2")
def test_regret_is_what_the_chosen_configuration_takes_beyond_the_best() -> None:
    times = [(100, 5), (110, 1), (200, 6), (300, 7), (400, 8)]
    rows = [configuration(*time, block=16 << index) for index, time in enumerate(times)]
    (result,) = ranks_of([*rows, configuration(1.0, 9.0, block=16, size=512)])
    assert (result.groups, result.variants) == (1, 5)
    assert result.regret == pytest.approx(10.0)
    # Of ten pairs, one is in the other order; of five ranks, two are exchanged.
    assert result.right == pytest.approx(90.0)
    assert result.spearman == pytest.approx(1 - 6 * 2 / (5 * 24))


def test_solutions_of_one_task_and_size_are_ranked() -> None:
    times = [(100, 10), (110, 9), (200, 20), (300, 30), (400, 40)]
    rows = [
        Row(
            Category.PROGRAMS, "H100", "topk", "", "kernelbench.com", measured,
            {"label": label, "run_id": str(measured)}, "rows.csv", 2,
        )
        for label, more in (("64", times), ("128", times[:1]))
        for measured, _ in more
    ]  # fmt: skip
    scored = [
        Scored(row, Answer(modeled))
        for row, (_, modeled) in zip(rows, [*times, times[0]], strict=True)
    ]
    (result,) = ranks_of(scored)
    assert (result.sort, result.groups, result.variants) == ("solutions", 1, 5)
    assert result.right == pytest.approx(90.0)
    assert result.regret == pytest.approx(10.0)
