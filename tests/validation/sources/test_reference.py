"""Reading measured rows, and what is wrong with files."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows.forms import Category, form_of
from kernbench.accuracy.rows.reference import read_rows, sampled
from kernbench.errors import UsageError
from validation.predictors.registry import make_predictor
from validation.sources.forms import FORMS

GEMM = "device,op,dtype,m,n,k,bytes,time_us,source\n"
ROW = "H200-SXM-141GB,gemm,bf16,64,4096,4096,34603008,14.2,mine\n"


def written(folder: Path, text: str) -> list[Path]:
    path = folder / "rows.csv"
    path.write_text(text)
    return [path]


def test_a_row_has_its_category_shape_and_place(tmp_path: Path) -> None:
    (row,) = read_rows(written(tmp_path, GEMM + ROW))
    assert row.category is Category.GEMM
    assert (row.integer("m"), row.integer("k"), row.time_us) == (64, 4096, 14.2)
    assert row.where == "rows.csv:2"
    assert row.optional("tp") is None


@pytest.mark.parametrize(
    ("columns", "category"),
    [
        ("m,n,k,n_ranks,bytes", Category.GEMM),
        ("rows,cols,n_ranks,bytes", Category.MEMBOUND),
        ("n_ranks,bytes", Category.COLLECTIVES),
        ("tp,pp,n_ranks,bytes", Category.TP_SCALING),
    ],
)
def test_the_category_follows_from_the_columns(columns: str, category: Category) -> None:
    common = ["device", "op", "dtype", "time_us", "source"]
    assert form_of("x.csv", {*columns.split(","), *common}).category is category


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns are missing: device"),
        ("device,op,dtype,time_us,source\n", "the columns are of no category; it takes isl, osl"),
        (GEMM.replace("time_us,", "") + ROW, "columns are missing: time_us"),
        (GEMM + ROW.replace("14.2", "-1"), "rows.csv:2: time_us must be a number above 0"),
        (GEMM + ROW.replace("14.2", "nan"), "rows.csv:2: time_us must be a number above 0"),
        (GEMM + ROW.replace(",mine", ""), "rows.csv:2: the row has not 9 columns"),
    ],
)
def test_a_file_that_says_too_little_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_rows(written(tmp_path, text))


TP = "device,op,dtype,tp,pp,time_us,tflops,mfu_pct,tokens_per_s_per_dev,source\n"


@pytest.mark.parametrize(
    ("numbers", "time_us", "per"),
    [("500,,,", 500.0, ""), (",,,250", 4000.0, "token"), (",400,40,250", 4000.0, "token"),
     (",400,40,", 2500.0, "TFLOP"), (",,40,", 25000.0, "% of peak")],
)  # fmt: skip
def test_a_rate_stands_for_the_device_time_of_what_it_counts(
    tmp_path: Path, numbers: str, time_us: float, per: str
) -> None:
    (row,) = read_rows(written(tmp_path, TP + f"H100,train,bf16,8,1,{numbers},mine\n"))
    assert (row.time_us, row.per) == (time_us, per)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [(",,,", "rows.csv:2: time_us is empty, and so are tokens_per_s_per_dev, tflops, mfu_pct"),
     (",-4,,", "rows.csv:2: tflops must be a number above 0, but got '-4'")],
)  # fmt: skip
def test_a_row_of_a_model_without_time_and_rate_is_refused(
    tmp_path: Path, numbers: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_rows(written(tmp_path, TP + f"H100,train,bf16,8,1,{numbers},mine\n"))


def test_a_field_that_is_too_long_is_named_by_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, TP + f"H100,train,bf16,8,1,9,,,{'y' * 200_000}\n")
    with pytest.raises(UsageError, match=r"rows\.csv:2: cannot be read: field larger than"):
        read_rows(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.csv: cannot be read"):
        read_rows([tmp_path / "none.csv"])


@pytest.mark.parametrize("size", ["0", "-4", "1.5", "nan", "1e400", "many", ""])
def test_an_impossible_size_names_its_row_and_column(tmp_path: Path, size: str) -> None:
    (row,) = read_rows(written(tmp_path, GEMM + ROW.replace(",64,", f",{size},")))
    with pytest.raises(UsageError, match=r"rows\.csv:2: column m"):
        row.integer("m")


def test_a_sample_is_the_same_every_time(tmp_path: Path) -> None:
    text = "".join(ROW.replace(",64,", f",{m},") for m in range(1, 401))
    rows = read_rows(written(tmp_path, GEMM + text))
    some = sampled(rows, {Category.GEMM: 4})
    assert some == sampled(rows, {Category.GEMM: 4})
    assert 50 < len(some) < 150
    assert sampled(rows, {Category.MEMBOUND: 4}) == rows
    # A file's own number comes before that of its category.
    assert sampled(rows, {Category.GEMM: 9, rows[0].file: 4}) == some
    with pytest.raises(UsageError, match="at least 1"):
        sampled(rows, {Category.GEMM: 0})


@pytest.mark.adr("0029-D4")
@pytest.mark.parametrize("category", [Category.GEMM, Category.MEMBOUND])
def test_every_category_has_a_predictor(category: Category) -> None:
    assert callable(make_predictor(category).predict)


@pytest.mark.parametrize(
    ("text", "device", "source", "time_us"),
    [
        (
            "folder,config,level,problem,mean_ms,hardware,commit,date\n"
            "L4_GCP,torch,level1,19_ReLU.py,1.5,NVIDIA L4,15c880c7,2026-01-14\n",
            "NVIDIA L4",
            "kernelbench",
            1500.0,
        ),
        ('part,op,input_size,ms\nperf_G,add,"[[4]]",0.02\n', "A100-SXM4-80GB", "tritonbench", 20.0),
        ('branch,kernel,params,ms\nmain,add,"{}",0.006\n', "MI300X", "geak", 6.0),
        (
            "run_id,gpu,problem,dtype,label,ms\na,rtxpro6000,05_topk,fp32,1x64,0.02\n",
            "RTX PRO 6000 Blackwell Workstation",
            "kernelbench.com",
            20.0,
        ),
    ],
)
def test_benchmarks_are_read_as_they_publish(
    tmp_path: Path, text: str, device: str, source: str, time_us: float
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    (row,) = read_rows([path], FORMS)
    assert (row.device, row.source) == (device, source)
    with pytest.raises(UsageError, match=r"rows.csv: "):
        read_rows([path])
    assert row.time_us == pytest.approx(time_us)
