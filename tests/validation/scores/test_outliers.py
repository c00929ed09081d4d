"""Rows that are further off than a goal lets any be stand beside others of their programs."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows.predictor import Answer
from kernbench.accuracy.score import Scored
from tests.validation.predictors.families.test_predictor import row
from validation.scores.outliers import outliers_of
from validation.scores.report import render_page


def test_a_row_far_off_stands_beside_others_of_its_program(tmp_path: Path) -> None:
    def measured(modeled_us: float, **fields: object) -> Scored:
        # Measured are 1000 us.
        found = row(
            tmp_path,
            **{"source": "mine", "model": "vit", "local_batch": 4, "dtype": "fp32", **fields},
        )
        return Scored(found, Answer(modeled_us))

    rows = [
        measured(650),
        measured(1080, local_batch=2),
        measured(900, device="RTX 3090"),
        measured(1000, model="bert"),
        measured(400, compile="yes"),
    ]
    (found,) = outliers_of(rows)
    assert (found.program, found.device) == ("vit 4 fp32", "A100-SXM4-80GB")
    assert found.error == pytest.approx(-35)
    assert found.item_us == 250
    assert found.alike_us == (500,)
    assert found.others == 2
    assert found.others_mape == pytest.approx(9)
    cells = "| -35 % | 2 | 9.0 | 250 | 500 to 500 (1) |"
    page = render_page(rows, "about")
    assert "## Programs further off than a goal lets any row be" in page
    assert cells in page
    assert "further off than" not in render_page(rows[1:], "about")
