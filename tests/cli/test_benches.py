"""The benches that ship, run small, as a user would run them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli.app import app
from tests.tiers import daily


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    with pytest.raises(SystemExit) as status:
        app(["run", *arguments, "--json", "-"])
    out = capsys.readouterr()
    assert status.value.code == 0, out.err
    return json.loads(out.out), out.err


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gemm_of_ragged_sizes_is_right_and_counts_its_flops(
    capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    sizes = ["-p", "m=100", "-p", "n=72", "-p", "k=40"]
    report, _ = report_of(capsys, "gemm", *sizes, "-p", f"dtype={dtype}")
    (kernel,) = report["kernels"]
    assert (kernel["name"], kernel["launches"]) == ("matmul_kernel", 1)
    # The tensors at least; whole tiles at most.
    assert kernel["flops"] >= 2 * 100 * 72 * 40
    assert 0 < kernel["utilization"] <= 1


def test_gemm_takes_the_same_time_with_and_without_data(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["-p", "m=128", "-p", "n=128", "-p", "k=128"]
    with_data, _ = report_of(capsys, "gemm", *sizes)
    without, _ = report_of(capsys, "gemm", *sizes, "--no-data")
    assert with_data["kernels"] == without["kernels"]


def test_ccl_allreduce_prints_a_line_per_case_and_busbw_stays_below_the_link(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = ["-p", "world_sizes=2,3", "-p", "sizes_kib=4,256", "-p", "algorithms=ring,tree"]
    report, printed = report_of(capsys, "ccl_allreduce", *cases)
    assert {(item["op"], item["algorithm"], item["count"]) for item in report["collectives"]} == {
        ("all_reduce", "ring", 4),
        ("all_reduce", "tree", 4),
    }
    lines = [line.split() for line in printed.splitlines() if line.split()[:1] in (["2"], ["3"])]
    cases_run = [line for line in lines if line[2] in ("ring", "tree")]
    assert len(cases_run) == 8
    assert all(0 < float(line[5]) <= 100 for line in cases_run), "links of ahbm: 100 GB/s"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tp_mlp_is_right_on_any_number_of_ranks(
    capsys: pytest.CaptureFixture[str], ranks: int
) -> None:
    sizes = ["-p", "hidden=64", "-p", "ffn=128", "-p", "tokens=8", "-p", "iterations=2"]
    report, _ = report_of(capsys, "tp_mlp", *sizes, "--ranks", str(ranks))
    launches = {item["name"]: item["launches"] for item in report["kernels"]}
    assert launches["matmul"] == 2 * 2 * ranks
    if ranks > 1:
        (collective,) = report["collectives"]
        assert (collective["op"], collective["count"]) == ("all_reduce", 2)


@pytest.mark.parametrize(
    "case",
    daily(
        (2, "bfloat16"),
        (3, "float16"),
        of=product((2, 3), ("float16", "bfloat16", "float32")),
    ),
    ids=str,
)
def test_oneshot_allreduce_is_right_and_compares_with_the_ring(
    capsys: pytest.CaptureFixture[str], case: tuple[int, str]
) -> None:
    ranks, dtype = case
    cases = ["-p", "sizes_kib=1,40", "-p", f"dtype={dtype}", "--ranks", str(ranks)]
    report, printed = report_of(capsys, "oneshot_allreduce", *cases)
    lines = [line.split() for line in printed.splitlines() if line.split()[:1] in (["1"], ["40"])]
    lines = [line for line in lines if len(line) == 5]
    header = ("KiB", "one_shot", "two_shot", "ring")
    for line in lines:
        times = dict(zip(header, map(float, line[:4]), strict=True))
        assert line[4] == min(header[1:], key=times.__getitem__)
    assert len(lines) == 2
    assert {item["name"]: item["launches"] for item in report["kernels"]} == {
        "one_shot": 2 * ranks,
        "two_shot": 2 * ranks,
    }


def test_oneshot_allreduce_without_data_says_why_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as status:
        app(["run", "oneshot_allreduce", "--no-data", "-p", "sizes_kib=1", "--ranks", "2"])
    assert status.value.code == 1
    assert "needs data" in (text := capsys.readouterr().err)
    assert "kernel one_shot at oneshot_allreduce.py:" in text
