"""Rows that a test writes down, and what the predictor of whole models answers."""

from __future__ import annotations

from pathlib import Path

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import Row, read_rows
from validation.predictors.tp_scaling import TpPredictor
from validation.sources.forms import FORMS

PREDICTOR = TpPredictor(presets())


def rows_of(tmp_path: Path, header: str, *lines: str) -> list[Row]:
    path = tmp_path / "rows.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return read_rows([path], FORMS)


def times_of(tmp_path: Path, header: str, *lines: str) -> list[float]:
    times = []
    for row in rows_of(tmp_path, header, *lines):
        answer = PREDICTOR.predict(row)
        assert answer.time_us is not None, answer.why_not
        times.append(answer.time_us)
    return times
