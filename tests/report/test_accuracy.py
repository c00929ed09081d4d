"""Published errors beside a run's time, weighted by what the time is of."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from io import StringIO
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernbench import ops
from kernbench.accuracy.rows import Category
from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.predictor import Answer, Ran
from kernbench.accuracy.rows.reference import read_rows
from kernbench.accuracy.score import Scored
from kernbench.analysis import print_difference
from kernbench.hardware import load_machine
from kernbench.op_log import Limit, OpLog, Template
from kernbench.report import (
    IdleParts,
    Report,
    accuracy,
    accuracy_line,
    kind_of,
    published_error,
    published_errors,
)
from kernbench.report.accuracy import accuracy_of
from kernbench.runtime_api import RuntimeContext
from kernbench.triton_backend import autotuning
from validation.predictors.registry import make_predictor
from validation.scores.published import errors_by_machine
from validation.scores.ranges import observations
from validation.scores.report import render_page, render_text, to_json

ROOT = Path(__file__).parents[2]
GEMM = "device,op,dtype,m,n,k,time_us,source\n"


def report_of(machine: str) -> Report:
    with RuntimeContext(machine=machine, ranks=1, data=False) as torch:
        x = torch.empty((2048, 2048), dtype=torch.float16)
        ops.matmul(x, x)
        ops.add(x, x)
        return torch.report()


@pytest.mark.adr("0128-D5")
def test_families_add_up_to_the_time_that_is_not_waiting() -> None:
    report = report_of("a100-sxm-80g")
    families = {item["family"]: item for item in report["accuracy"]}
    total = sum(item["time_ns"] for item in report["per_rank"])
    compute = sum(item["compute_ns"] for item in report["per_rank"])
    (gemm_ns,) = (item["time_ns"] for item in report["kernels"] if item["flops"])
    kernels_ns = sum(item["time_ns"] for item in report["kernels"])
    share = gemm_ns / kernels_ns * compute / total
    assert families["gemm"]["share"] == pytest.approx(share, abs=1e-5)
    known = published_errors()["a100-sxm-80g"]
    assert (families["gemm"]["rows"], families["gemm"]["error_percent"]) == known["gemm"]
    assert families["membound"]["error_percent"] == known["membound"][1]
    assert sum(family["share"] for family in families.values()) <= 1.0 + 1e-6


@pytest.mark.adr("0128-D5")
def test_a_machine_of_which_nothing_was_measured_claims_nothing() -> None:
    assert "accuracy" not in report_of("ahbm")


def test_the_line_names_each_family_with_its_error_and_share() -> None:
    line = accuracy_line(
        [
            {"family": "gemm", "share": 0.62, "error_percent": 4.8, "rows": 9},
            {"family": "host", "share": 0.17, "error_percent": None, "rows": 0},
        ]
    )
    assert line.endswith(": gemm 4.8 % (62 % of the time); none of host (17 %)")
    assert accuracy_line([]) == ""


@pytest.mark.adr("0192-D1")
def test_a_family_without_rows_of_its_machine_has_the_error_of_other_machines() -> None:
    known = published_errors()
    machine = next(name for name, families in known.items() if "host" not in families)
    rows = [families["host"] for families in known.values() if "host" in families]
    error = published_error(machine, "host")
    assert (error["error_percent"], error["rows"]) == (None, 0)
    assert error["elsewhere_rows"] == sum(count for count, _ in rows)
    assert (
        min(rows, key=itemgetter(1))[1]
        <= error["elsewhere_percent"]
        <= max(map(itemgetter(1), rows))
    )
    assert "elsewhere_percent" not in published_error(machine, "of nothing")
    line = accuracy_line([{**error, "share": 0.83}])
    expected = f"on other machines only: host {error['elsewhere_percent']:.1f} % (83 %)"
    assert line.endswith(f": {expected}")


@pytest.mark.adr("0212-D1")
def test_what_nobody_measures_by_itself_has_the_error_of_whole_programs() -> None:
    known = published_errors()
    machine = next(name for name, families in known.items() if "programs" in families)
    assert not any("convolution" in families for families in known.values())
    error = published_error(machine, "convolution")
    assert (error["programs_rows"], error["programs_percent"]) == known[machine]["programs"]
    line = accuracy_line([{**error, "share": 0.5}])
    expected = f"in whole programs only: convolution {error['programs_percent']:.1f} % (50 %)"
    assert line.endswith(f": {expected}")
    other = next(name for name, families in known.items() if "programs" not in families)
    assert "programs_percent" not in published_error(other, "convolution")
    none = accuracy_line([{**published_error(other, "convolution"), "share": 0.5}])
    assert none.endswith(": none of convolution (50 %)")


@pytest.mark.adr("0235-D3")
def test_a_machine_without_rows_that_the_engine_ran_says_so() -> None:
    """The steps that sources publish of GB300 are on many devices, and no program was run."""
    assert "gb300" not in published_errors()
    report = report_of("gb300")
    assert {item["family"] for item in report["accuracy"]} >= {"gemm", "membound"}
    for result in report["accuracy"]:
        assert set(result) == {"family", "error_percent", "rows", "share"}
        assert (result["error_percent"], result["rows"]) == (None, 0)
    line = accuracy_line(report["accuracy"])
    assert line.startswith("published errors of what the time is of: none of ")
    assert all(f"{item['family']} (" in line for item in report["accuracy"])


@pytest.mark.adr("0235-D1", "0235-D4")
def test_what_was_composed_is_part_of_no_published_error(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text(GEMM + "H100,gemm,bf16,64,64,64,10,me\n" * 2 + "L40S,gemm,bf16,8,8,8,10,me\n")
    ran = Answer(11.0, ran=Ran.KERNELS)
    composed = [Answer(None, "nothing was run", composed_us=number) for number in (90.0, 10.0)]
    answers = [ran, *composed]
    scored = [Scored(row, answer) for row, answer in zip(read_rows([path]), answers, strict=True)]
    assert errors_by_machine(scored, presets()) == {"h100-sxm": {"gemm": (1, 10.0)}}
    published = to_json(scored, presets())
    gemm = published["categories"]["gemm"]
    assert (gemm["rows"], gemm["unanswered"], gemm["mape"]) == (3, 2, pytest.approx(10.0))
    assert [item["rows"] for item in published["composed"]] == [1, 1]
    for text in (render_page(scored, "about", presets()), render_text(scored, 3, presets())):
        assert "800" not in text
        assert "nothing was run" in text
        ends = {line.strip(" |").rpartition(" ")[2] for line in text.splitlines() if "L40S" in line}
        assert "composed" in ends
        assert any("H100" in line and "kernels, composed" in line for line in text.splitlines())


@pytest.mark.adr("0128-D5")
def test_errors_by_machine_are_the_mean_of_the_answered_rows(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    lines = [f"{device},gemm,bf16,64,64,64,10,me" for device in ("A100", "H100", "H100", "H100")]
    path.write_text(GEMM + "\n".join(lines) + "\n")
    answers = [Answer(11.0), Answer(8.0), Answer(14.0), Answer(None, "unknown")]
    scored = [Scored(row, answer) for row, answer in zip(read_rows([path]), answers, strict=True)]
    errors = errors_by_machine(scored, presets())
    assert errors["h100-sxm"]["gemm"] == (2, 30.0)
    assert errors["a100-sxm-40g"]["gemm"] == (1, 10.0)
    assert json.loads(json.dumps(errors))["h100-sxm"]["gemm"] == [2, 30.0]


@pytest.mark.adr("0128-D9")
def test_attention_that_no_program_launches_is_in_no_report_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "attention.csv"
    head = (
        "source,device,op,framework,kernel,attn_dtype,kv_dtype,batch,q_len,kv_len,heads,kv_heads,"
        "head_dim,window,causal,time_us\n"
    )
    sizes = "bfloat16,bfloat16,4,512,512,16,2,128,0,yes,100\n"
    prefill = "me,H100-SXM-80GB,attention_prefill"
    path.write_text(
        f"{head}{prefill},vllm,vllm_flash_attn_fa3,{sizes}{prefill},sglang,triton,{sizes}"
    )
    predictor = make_predictor(Category.ATTENTION)
    scored = [Scored(row, predictor.predict(row)) for row in read_rows([path])]
    families = ["attention", "attention of stacks"]
    assert list(errors_by_machine(scored, presets())["h100-sxm"]) == families
    assert [item.kind for item in observations(scored, presets())] == families


@pytest.mark.adr("0131-D6")
def test_the_hosts_error_is_that_of_programs_whose_devices_wait_for_it(tmp_path: Path) -> None:
    path = tmp_path / "programs.csv"
    head = "device,source,program,dtype,metric,value,unit,derived_step_time_s\n"
    path.write_text(head + "A100,me,train.py,fp16,time_per_step,10,us,0.00001\n" * 3)
    answers = [Answer(12.0, host_share=0.9), Answer(9.0, host_share=0.2), Answer(None, "hangs")]
    scored = [Scored(row, answer) for row, answer in zip(read_rows([path]), answers, strict=True)]
    error = errors_by_machine(scored, presets())["a100-sxm-40g"]
    assert error == {"host": (1, 20.0), "programs": (2, 15.0)}


@pytest.mark.adr("0131-D6")
def test_the_hosts_share_is_all_that_devices_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = IdleParts(copies_ps=9, launches_ps=1, python_ps=2, allocations_ps=4, reads_ps=8)
    monkeypatch.setattr("kernbench.report.accuracy.idle_parts", lambda log: parts)
    monkeypatch.setattr(
        "kernbench.report.accuracy.published_errors", lambda: {"a100-sxm-80g": {"host": (7, 9.5)}}
    )
    machine = load_machine("a100-sxm-80g", 1)
    rank: Any = {"time_ns": 0.03, "compute_ns": 0.0, "comm_exposed_ns": 0.0}
    (result,), kinds = accuracy_of(OpLog(), machine, [rank], [])
    assert kinds == {"host": 0.015}
    assert result == {"family": "host", "share": 0.5, "error_percent": 9.5, "rows": 7}


def test_published_errors_are_those_of_the_page() -> None:
    """By machine and category: rows, and means weighted by rows, of the page's table of errors."""
    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    on_page = defaultdict[tuple[str, str], list[float]](lambda: [0, 0.0])
    for line in page[page.index("\n## Errors") :].splitlines():
        cells = [word.strip() for word in line.strip("|").split("|")]
        if len(cells) < 9 or cells[1] not in presets() or cells[6] == "-":
            continue
        rows = int(cells[4]) - int(cells[5])
        sums = on_page[presets().machine_of(cells[1]).spec.name, cells[0]]
        sums[0] += rows
        sums[1] += rows * float(cells[6])
    published = defaultdict[tuple[str, str], list[float]](lambda: [0, 0.0])
    categories = {
        "narrow gemm": "gemm", "quantize": "membound", "attention of stacks": "attention",
        "moe of stacks": "moe",
    }  # fmt: skip
    for machine, families in published_errors().items():
        for family, (rows, error) in families.items():
            sums = published[machine, categories.get(family, family)]
            sums[0] += rows
            sums[1] += rows * error
    # No kernel is of a program, and the host's rows are some of theirs.
    compared = [key for key in published if key[1] not in ("host", "programs")]
    assert len(compared) > 40
    for key in compared:
        (count, error), (count_there, error_there) = published[key], on_page[key]
        assert count == count_there, key
        assert error / count == pytest.approx(error_there / count_there, abs=0.1), key


PAIRS: Any = {"pairs": {name: {"pairs": 9, "within": 1.2, "right": [[None, 9, 0.6]]} for name in
              ("kernels", "runs", "plans")}}  # fmt: skip


@pytest.mark.adr("0250-D3")
def test_a_report_says_of_which_kinds_its_range_is() -> None:
    report = report_of("a100-sxm-80g")
    value: Any = report["range"]
    assert value["low_ns"] < value["high_ns"]
    assert sum(item["share"] for item in value["kinds"]) == pytest.approx(1, abs=1e-5)
    assert value["kinds"][0]["kind"] == "Triton products"
    for end in ("low", "high"):
        multiple = sum(item["share"] * item[end] for item in value["kinds"])
        assert value[f"{end}_ns"] == pytest.approx(multiple * report["time_ns"])
    assert "range" not in report_of("ahbm")


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        ("aten.native_layer_norm", "membound", "norms"),
        ("aten._softmax", "membound", "softmax"),
        ("aten.max_pool2d_with_indices", "membound", "pooling"),
        ("aten.cumsum", "membound", "scans"),
        ("aten._cudnn_rnn", "gemm", "recurrent"),
        ("aten.convolution", "convolution", "convolutions"),
        ("aten.mm", "gemm", "gemm"),
        ("aten.relu", "membound", "elementwise"),
        ("aten.frexp", "", "by bytes alone"),
        ("aten.adaptive_max_pool2d", "", "by bytes alone"),
        ("triton_poi_fused_add_0", "membound", "Triton kernels"),
        ("matmul_kernel", "gemm", "Triton products"),
    ],
)
def test_kinds_of_kernels_follow_from_their_names(name: str, family: str, kind: str) -> None:
    template = Template(
        name=name, kind="kernel", algorithm="", duration_ps=1, flops=0, hbm_bytes=0,
        engine_busy_ps={}, message_bytes=0, make_rows=dict, family=family,
    )  # fmt: skip
    assert kind_of(template) == kind


@pytest.mark.adr("0280-D3")
@pytest.mark.parametrize(("of_hbm_ps", "kind"), [(40, "Triton products"), (60, "Triton streams")])
def test_kernels_that_memory_bounds_have_a_range_of_their_own(of_hbm_ps: int, kind: str) -> None:
    template = Template(
        name="paged_attention", kind="kernel", algorithm="", duration_ps=100, flops=1, hbm_bytes=1,
        engine_busy_ps={}, message_bytes=0, make_rows=dict, family="gemm",
        limits_ps={Limit.HBM: of_hbm_ps, Limit.GEMM: 100},
    )  # fmt: skip
    assert kind_of(template) == kind
    assert kind_of(replace(template, name="aten.mm")) == "gemm"
    # A serving engine's product is of its library, however memory bounds it.
    scaled = replace(template, name="_C.cutlass_scaled_mm", family="narrow gemm")
    assert kind_of(scaled) == "narrow gemm"


@pytest.mark.adr("0252-D2")
def test_runs_that_are_close_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "_published", lambda: PAIRS)

    def printed(after_ns: float) -> str:
        value: Any = {
            "before": "one", "after": "two", "before_ns": 100.0, "after_ns": after_ns,
            "difference_ns": after_ns - 100.0, "contributions": [],
        }  # fmt: skip
        console = Console(file=StringIO(), width=200)
        print_difference(value, console)
        return console.file.getvalue()  # type: ignore[attr-defined]

    assert "of 9 pairs as close, 60 % were ordered right" in printed(110.0)
    assert "pairs" not in printed(130.0)
    assert "pairs" not in printed(100.0), "equal times are in no order"


@pytest.mark.adr("0252-D2")
def test_what_a_tuner_chose_is_said_to_be_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "_published", lambda: PAIRS)
    with RuntimeContext(machine="a100-sxm-80g", ranks=1, data=False) as context:
        for timings in ({"a": [1.0, 1.0, 1.0], "b": [1.1, 1.1, 1.1]}, {"a": 1.0, "b": 1.3}):
            autotuning._say_how_sure("matmul", timings)
        lines = [line for remark in context.run.remarks for line in remark()]
    (line,) = (line for line in lines if "matmul" in line)
    assert line.startswith("the two best configurations of matmul are closer than errors")
