"""Rows of quantisation: which launches each stack makes of them."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.reference import Row, read_rows
from validation.predictors.membound import MemboundPredictor
from validation.predictors.registry import make_predictor

PREDICTOR = MemboundPredictor(presets())
HEADER = "source,device,op,framework,kernel,quant_dtype,rows,cols,time_us"


def row_of(tmp_path: Path, stack: str, op: str, sizes: str = "512,10240", time: str = "9") -> Row:
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEADER}\naic-quantize,H200-SXM-141GB,{op},{stack},k,fp8,{sizes},{time}\n")
    (row,) = read_rows([path])
    return row


def test_quantisation_is_answered_by_the_predictor_of_its_category(tmp_path: Path) -> None:
    row = row_of(tmp_path, "trtllm", "scale_matrix")
    assert row.category is Category.MEMBOUND
    assert make_predictor(row.category).predict(row).how == "quantize_trtllm_scale_matrix"


def test_eager_operations_are_launches_of_their_own(tmp_path: Path) -> None:
    measured = PREDICTOR.measured(row_of(tmp_path, "sglang", "scale_matrix"))
    assert [kernel.hbm_bytes for kernel in measured.kernels] == [
        number * 512 * 10240 for number in (6.0, 8.0, 5.0)
    ]


def test_a_difference_of_launches_is_the_difference_of_their_times(tmp_path: Path) -> None:
    row = row_of(tmp_path, "vllm", "computescale", "4352,16384")
    measured = PREDICTOR.measured(row)
    static = PREDICTOR.measured(row_of(tmp_path, "vllm", "scale_matrix", "4352,16384"))
    assert measured.less == static.kernels
    both = PREDICTOR.predict(row).time_us or 0
    assert 0 < both < static.time_us()


@pytest.mark.parametrize(
    ("stack", "op", "time", "why"),
    [
        ("nobody", "scale_matrix", "9", "no kernel for scale_matrix of nobody"),
        ("vllm", "computescale", "0.05", "a difference of launches below 0.1 us is noise"),
    ],
)
def test_what_is_not_modeled_says_why(
    tmp_path: Path, stack: str, op: str, time: str, why: str
) -> None:
    assert PREDICTOR.predict(row_of(tmp_path, stack, op, time=time)).why_not == why
