"""Whole programs by family, with the reasons of rows that have no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.predictor import Answer
from kernbench.accuracy.score import Scored
from tests.validation.predictors.families.test_predictor import row
from validation.predictors.families.chosen import Family, family_of
from validation.scores.families import families_of
from validation.scores.goals import goals_of
from validation.scores.report import render_page, to_json


@pytest.mark.parametrize(
    ("fields", "family"),
    [
        ({"metric": "time_per_step"}, Family.EAGER_TRAINING),
        ({"metric": "absolute_latency (forward+backward)"}, Family.EAGER_TRAINING),
        ({"compile": "yes (full)"}, Family.COMPILED_TRAINING),
        ({"metric": "mean_inference_time_300_runs"}, Family.EAGER_INFERENCE),
        ({"metric": "forward_time", "compile": "yes"}, Family.COMPILED_INFERENCE),
        ({"metric": "Latency Avg", "program_config": "FP32 Inference"}, Family.EAGER_INFERENCE),
        ({"metric": "decode_tokens_per_s"}, Family.DECODE),
        ({"metric": "decode_tokens_per_s", "n_devices": 8}, Family.MANY_DEVICES),
    ],
)
def test_a_row_is_of_one_family(tmp_path: Path, fields: dict[str, object], family: Family) -> None:
    assert family_of(row(tmp_path, source="mine", **fields)) is family


@pytest.mark.adr("0131-D1")
def test_a_page_says_how_far_off_families_are_and_why_rows_have_no_answer(
    tmp_path: Path,
) -> None:
    # Measured are 1000 us.
    times = (900.0, 1300.0, None)
    eager = row(tmp_path, source="mine")
    scored = [Scored(eager, Answer(time, "" if time else "needs timm")) for time in times]
    scored.append(Scored(row(tmp_path, source="mine", compile="yes"), Answer(None, "compiled")))
    first, second = families_of(scored)
    assert (first.rows, first.unanswered, first.why_not) == (3, 1, "1 needs timm")
    assert first.mape == pytest.approx(20)
    assert first.worst == pytest.approx(30)
    assert (second.name, second.mape, second.why_not) == ("compiled training", None, "1 compiled")
    page = render_page(scored, "about")
    assert "## Whole programs" in page
    assert "| eager training | 3 | 1 | 20.0 | 30.0 | 1 needs timm |" in page
    assert to_json(scored)["programs"][0]["rows"] == 3
    # The goal is of eager programs: their mean, and their worst.
    goal = "| eager programs on one device | 2 | MAPE <= 12 %, worst <= 30 % | 20.0 %, 30 % | no |"
    assert goal in page
    assert "| programs | A100-SXM4-80GB | mine | eager training " in page


def test_programs_on_many_devices_have_a_goal_of_their_own(tmp_path: Path) -> None:
    many = row(tmp_path, source="mine", n_devices=8)
    compiled = row(tmp_path, source="mine", n_devices=8, compile="yes")
    scored = [Scored(many, Answer(1140.0)), Scored(compiled, Answer(9000.0))]
    (goal, *_) = goals_of(scored, None, presets())
    assert (goal.name, goal.rows, goal.met) == ("eager training on 8 devices and more", 1, True)
