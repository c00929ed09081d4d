"""Peaks of memory that sources report, beside those of programs that were run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.predictor import Answer
from kernbench.accuracy.score import Scored
from tests.validation.predictors.answers import rows_of
from tests.validation.predictors.families.test_predictor import COLUMNS
from validation.scores.memories import peaks_of
from validation.scores.report import render_page

NAMES = [*COLUMNS, "fsdp", "dp", "note"]
TITAN = {
    "source": "torchtitan-202412",
    "device": "H100-SXM-80GB",
    "n_devices": 128,
    "nodes": 16,
    "fsdp": 128,
    "compile": "yes",
    "dtype": "bf16",
    "model": "Llama-3.1 8B",
    "seq_len": 8192,
    "local_batch": 2,
    "activation_checkpointing": "selective (op)",
    "derived_step_time_s": 2.5,
    "metric": "tokens_per_s_per_device",
    "value": 1,
    "unit": "tokens/s",
    "note": "peak memory 62.0 GiB; iteration 90",
}


def scored(tmp_path: Path, **fields: object) -> Scored:
    value = {**TITAN, **fields}
    line = ",".join(f'"{value.get(name, "")}"' for name in NAMES)
    (result,) = rows_of(tmp_path, ",".join(NAMES) + "\n", line)
    return Scored(result, Answer(2.4e6, peak_bytes=60 * 2**30))


@pytest.mark.adr("0255-D4")
def test_a_page_shows_peaks_of_programs_that_ran(tmp_path: Path) -> None:
    rows = [scored(tmp_path), scored(tmp_path, note="nothing")]
    rows.append(Scored(scored(tmp_path).row, Answer(None, "CUDA out of memory. Tried")))
    # A peak of a batch that nobody states is of no known program.
    rows.append(scored(tmp_path, note="memory 90 GiB; local batch 1 (not printed)"))
    (peak,) = peaks_of(rows)
    assert (peak.measured, peak.modeled) == (62.0, 60.0)
    page = render_page(rows, "about", presets())
    assert "## Peak memory of a rank in training, GiB" in page
    line = (
        "| torchtitan-202412 Llama-3.1 8B | 128 | fsdp 128 | selective (op) | 62.0 | 60.0 | -3% |"
    )
    assert line in page
    assert "| all | 1 rows |  |  |  |  | 3.2 % |" in page
    assert "| fits | 3 of 4 | programs that a source ran |" in page
