"""Speed-ups of compiled programs: which rows are a pair, and how far off their ratio is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.predictor import Answer, is_apart
from kernbench.accuracy.score import Scored
from tests.validation.predictors.families.test_predictor import row
from validation.scores.goals import goals_of
from validation.scores.report import render_page, to_json
from validation.scores.speedups import pairs_of, speedups_of

# Rows of one program have been measured to take 1000 us, compiled or not.
YES = "yes (default mode)"


def scored(tmp_path: Path, time_us: float | None, **fields: object) -> Scored:
    result = row(tmp_path, **{"source": "mine", "model": "ViT", "local_batch": 4, **fields})
    return Scored(result, Answer(time_us, "" if time_us else "not run"))


def test_a_pair_is_one_program_of_a_source_both_ways(tmp_path: Path) -> None:
    eager = scored(tmp_path, 2000.0)
    slower = {"derived_step_time_s": 0.002}
    rows = [
        scored(tmp_path, 500.0, compile=YES),
        scored(tmp_path, 800.0, compile="aot_eager backend", **slower),
        eager,
        # Of another shape, of another source, and without an answer.
        scored(tmp_path, 1.0, compile=YES, local_batch=1),
        scored(tmp_path, 1.0, compile=YES, source="theirs"),
        scored(tmp_path, None, compile=YES),
    ]
    fast, slow = pairs_of(rows)
    assert (fast.eager, slow.eager) == (eager, eager)
    assert (fast.measured, fast.modeled) == (1.0, 4.0)
    assert (slow.measured, slow.modeled) == (0.5, 2.5)
    assert (fast.error, slow.error) == pytest.approx((3, 4))
    (result,) = speedups_of(rows)
    assert (result.source, result.pairs) == ("mine", 2)
    assert result.measured == pytest.approx(0.5**0.5)
    assert result.modeled == pytest.approx(10**0.5)
    assert result.mape == pytest.approx(350)


def test_compiled_programs_have_goals_of_their_time_and_of_their_speed_up(tmp_path: Path) -> None:
    rows = [
        scored(tmp_path, 900.0),
        scored(tmp_path, 1100.0, compile=YES),
        # Neither is of one device.
        scored(tmp_path, 9000.0, compile=YES, n_devices=8),
    ]
    assert not is_apart(rows[0].row)
    eager, compiled, speedup = goals_of(rows, None, presets())
    assert eager.name == "eager programs on one device"
    assert (compiled.name, compiled.rows) == ("compiled programs on one device", 1)
    assert (compiled.reached, compiled.met) == ("10.0 %", True)
    assert (speedup.name, speedup.rows) == ("speed-up of compiled programs over eager", 1)
    # 900 / 1100 where 1 was measured.
    assert (speedup.reached, speedup.met) == ("18.2 %", False)
    page = render_page(rows, "about")
    assert "| mine | A100-SXM4-80GB | 1 | 1.00x | 0.82x | 18.2 |" in page
    assert to_json(rows)["speedups"][0]["pairs"] == 1
