"""Rows that users measured, scored by kernbench alone: without the validation package."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from kernbench.accuracy.rows import OWN, Answer, Category, read_rows
from kernbench.accuracy.rows.devices import presets
from kernbench.cli import app as command_line
from kernbench.cli.commands.validate import ValidateOptions, validate
from kernbench.errors import UsageError
from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import Product, product_kernels
from kernbench.links import Asked, Network
from validation.predictors.gemm import GemmPredictor

ALONE = """
import sys
from importlib import metadata
sys.modules["validation"] = None  # What imports it fails.
every = metadata.entry_points
metadata.entry_points = lambda **of: () if of.get("group") == "kernbench.commands" else every(**of)
from kernbench.cli import main
main()
"""
GEMM = "device,op,dtype,m,n,k,time_us,source\n"
ROWS = "device,op,dtype,rows,cols,time_us,source\n"
COLLECTIVES = "device,op,dtype,n_ranks,bytes,time_us,source\n"


def alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.adr("0128-D6")
def test_a_product_takes_what_a_program_takes_with_or_without_the_validation_package(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gemm.csv"
    impls = "torch", "a kernel in Triton"
    path.write_text(
        GEMM.replace("source", "source,impl")
        + "".join(f"B200,gemm,bf16,4096,8192,2048,100,me,{impl}\n" for impl in impls)
    )
    predictor = OWN.make(Category.GEMM)
    own, triton = (predictor.predict(row) for row in read_rows([path]))
    machine = load_machine("b200")
    product = Product(m=4096, n=8192, k=2048, part_bytes=2)
    library = load_library("sm100")
    launches = product_kernels(product, machine.sip, library).total_us
    assert own.time_us == pytest.approx(launches, rel=0.01)
    published = [GemmPredictor(presets()).predict(row).time_us for row in read_rows([path])]
    assert published == pytest.approx([own.time_us, triton.time_us])
    assert triton.time_us != own.time_us


@pytest.mark.adr("0236-D1")
def test_kernbench_scores_own_rows_without_the_validation_package(tmp_path: Path) -> None:
    gemm, rows = tmp_path / "gemm.csv", tmp_path / "membound.csv"
    gemm.write_text(GEMM + "H100,gemm,bf16,64,64,64,10,me\nH100,gemm,int3,64,64,64,10,me\n")
    rows.write_text(ROWS + "H100,add,fp32,4096,4096,80,me\nH100,sinh,fp32,64,64,10,me\n")
    target = tmp_path / "errors.json"
    done = alone("validate", str(gemm), str(rows), "--json", str(target), "--worst", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no Triton dtype for int3" in done.stdout
    assert "no kernel for op sinh" in done.stdout
    assert "the 1 rows that are furthest off:" in done.stdout
    errors = json.loads(target.read_text())
    counts = {
        name: (value["rows"], value["unanswered"]) for name, value in errors["categories"].items()
    }
    assert counts == {"gemm": (2, 1), "membound": (2, 1)}
    (add,) = (item for item in errors["groups"] if item["op"] == "add")
    # 201 MB at 3.35 TB/s are 60 us at least.
    assert -25 < add["mape"] < 25


@pytest.mark.adr("0236-D1")
@pytest.mark.parametrize(
    ("head", "line", "category"),
    [
        ("device,source,program,dtype,metric,value,unit,derived_step_time_s\n",
         "H100,me,train.py,fp16,step,1,ms,0.001\n", "programs"),
        ("device,op,dtype,tp,pp,time_us,tokens_per_s_per_dev,source\n",
         "H100,generate,fp16,1,1,9,,me\n", "tp_scaling"),
    ],
)  # fmt: skip
def test_published_rows_are_refused_in_a_sentence(
    tmp_path: Path, head: str, line: str, category: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(head + line)
    done = alone("validate", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: rows.csv:2 is a row of {category}, and kernbench alone")
    assert "gemm, attention, membound, collectives" in done.stderr
    assert "make validate" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("head", [ROWS, COLLECTIVES])
@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("torch.bfloat16", "bf16"), ("BF16", "bf16"), ("Half", "fp16"), ("f16", "fp16"),
        ("torch.float32", "fp32"), ("F32", "fp32"), ("float8_e4m3fn", "fp8"), ("int3", "int3"),
    ],
)  # fmt: skip
def test_dtypes_of_rows_are_read_as_people_write_them(
    tmp_path: Path, head: str, spelled: str, name: str
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(head + f"H100,add,{spelled},8,4096,40,me\nH100,add,{name},8,4096,40,me\n")
    assert [row.dtype for row in read_rows([rows])] == [name, name]


def test_without_a_source_rows_are_of_their_file(tmp_path: Path) -> None:
    named, plain = tmp_path / "named.csv", tmp_path / "ours.csv"
    named.write_text(GEMM + "H100,gemm,bf16,64,64,64,10,me\n")
    plain.write_text(GEMM.replace(",source", "") + "H100,gemm,bf16,64,64,64,10\n")
    assert [row.source for row in read_rows([named, plain])] == ["me", "ours"]


def test_nothing_to_score_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(GEMM)
    with pytest.raises(UsageError, match=r"nothing to score: .*rows\.csv has no rows"):
        validate(ValidateOptions(data=[str(path)]))


def test_a_collective_of_own_rows_takes_what_its_schedule_takes(tmp_path: Path) -> None:
    path = tmp_path / "collectives.csv"
    path.write_text(COLLECTIVES + "H100,all_reduce,fp16,4,1048576,30,me\n")
    target = tmp_path / "errors.json"
    validate(ValidateOptions(data=[str(path)], json=str(target), jobs=1))
    (group,) = json.loads(target.read_text())["groups"]
    network = Network(load_machine("h100-sxm", 4))
    asked, sips = Asked("all_reduce", 4, 524288, 2), (0, 1, 2, 3)
    choice = network.selector.choose(asked, sips, "auto")
    placed = network.run(choice.build(asked), sips, (0,) * 4, choice.protocol)
    expected = placed.template.duration_ps / 1e6 / 30 - 1
    assert group["bias"] == pytest.approx(100 * expected)


@pytest.mark.adr("0236-D2")
def test_commands_of_other_distributions_are_found_and_take_the_place_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {entry.name for entry in metadata.entry_points(group=command_line.GROUP)}
    assert {"validate", "calibrate"} <= names, "pip install --editable validation"
    assert command_line._homes()["validate"]().__name__ == "validation.commands.validate"
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    assert command_line._homes()["validate"]().__name__ == "kernbench.cli.commands.validate"


def test_the_page_names_every_category_column_and_dtype_of_own_rows() -> None:
    from kernbench.accuracy.predictors import GEMM_DTYPES, ROW_DTYPES
    from kernbench.accuracy.predictors.collectives import ITEM_BYTES
    from kernbench.accuracy.rows.forms import FORMS
    from kernbench.ops import ELEMENTWISE_OPS, ROW_OPS

    page = (Path(__file__).parents[2] / "docs" / "measured-rows.md").read_text(encoding="utf-8")
    assert set(OWN.by_category) == {
        Category.GEMM, Category.ATTENTION, Category.MEMBOUND, Category.COLLECTIVES,
    }  # fmt: skip
    for form in FORMS:
        if form.category in OWN.by_category:
            for column in (*form.columns, form.op, form.dtype, *form.time, "device", "source"):
                assert f"`{column}`" in page, column
    for name in (*GEMM_DTYPES, *ROW_DTYPES, *ITEM_BYTES, *ELEMENTWISE_OPS, *ROW_OPS):
        assert f"`{name}`" in page, name


HEAD = "device,op,dtype,batch,q_len,kv_len,heads,kv_heads,head_dim,causal,time_us,impl\n"


def answered(folder: Path, row: str) -> Answer:
    path = folder / "attention.csv"
    path.write_text(f"{HEAD}{row}\n")
    (own,) = read_rows([path])
    return OWN.make(own.category).predict(own)


@pytest.mark.parametrize(
    ("row", "kernels"),
    [
        ("H100,forward,bf16,4,4096,4096,32,8,128,yes,1,", "cudnn_forward"),
        ("H100,forward,torch.bfloat16,4,4096,4096,32,8,128,yes,1,FA3", "flash3_forward"),
        ("A100,forward,half,4,4096,4096,32,8,128,yes,1,", "flash2_forward"),
        ("H100,forward,fp16,4,4096,4096,32,8,128,yes,1,sdpa", "cudnn_forward"),
        ("B300-SXM,forward,fp16,4,4096,4096,32,8,128,yes,1,", "flash2_forward"),
        ("A100,forward,fp32,4,4096,4096,32,8,128,yes,1,", "efficient_forward"),
    ],
)
def test_attention_takes_what_a_program_would_launch(
    tmp_path: Path, row: str, kernels: str
) -> None:
    answer = answered(tmp_path, row)
    assert answer.how == kernels
    time_us = answer.time_us
    assert time_us is not None
    # 4 * 32 * 128 * 4096 * 4096 / 2 * 4 operations, at no more than the peak of a device.
    assert time_us > 1.1e12 / 2 / 989e6
    both = answered(tmp_path, row.replace("forward", "forward+backward")).time_us
    assert both is not None
    # The backward pass has five products in place of two.
    assert 2.5 < both / time_us < 6


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("H100,sideways,bf16,4,64,64,8,8,64,no,1,", "sideways is neither a forward nor a backward"),
        ("H100,forward,int4,4,64,64,8,8,64,no,1,", "no attention in int4 (known: bf16"),
        ("T4,forward,fp16,4,64,64,8,8,64,no,1,", "no kernel for forward of flash2 on t4"),
        (
            "H100,forward,fp16,4,64,64,8,8,64,no,1,xformers",
            "no attention of xformers (known: cudnn",
        ),
    ],
)
def test_attention_that_nothing_answers_says_why(tmp_path: Path, row: str, why: str) -> None:
    answer = answered(tmp_path, row)
    assert answer.time_us is None
    assert why in answer.why_not
