"""Errors by hand, groups, baselines, and what the command prints and writes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from kernbench.accuracy.score import answer_rows, errors_of, measure
from kernbench.cli.app import app
from kernbench.errors import UsageError
from validation.commands.validate import ValidateOptions, validate
from validation.scores.baselines import ideal_us, roofline

TEXT = """\
device,op,dtype,rows,cols,bytes,time_us,source
A100-PCIe-40GB,add,fp32,4096,4096,201326592,150.0,mine
A100-PCIe-40GB,add,fp32,8192,4096,402653184,290.0,mine
A100-PCIe-40GB,add,fp32,16384,4096,805306368,580.0,mine
A100-PCIe-40GB,sinh,fp32,4096,4096,134217728,100.0,mine
Abacus,add,fp32,4096,4096,201326592,150.0,mine
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(TEXT)
    return path


def options(data: Path, **changed: object) -> ValidateOptions:
    value = {"json": None, "page": None, "plot": None, "worst": 0, "jobs": 1}
    return ValidateOptions(data=(str(data),), **{**value, **changed})  # type: ignore[arg-type]


def test_errors_by_hand() -> None:
    errors = errors_of(np.array([110.0, 180.0, 300.0]), np.array([100.0, 200.0, 300.0]), 2)
    assert (errors.rows, errors.unanswered) == (5, 2)
    assert errors.mape == pytest.approx(20 / 3)
    assert errors.median == pytest.approx(10)
    assert errors.p90 == pytest.approx(10)
    assert errors.bias == pytest.approx(0)
    assert errors.spearman == pytest.approx(1)
    nothing = errors_of(np.zeros(0), np.zeros(0), 3)
    assert (nothing.rows, nothing.mape, nothing.spearman) == (3, None, None)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=30))
def test_spearman_is_the_correlation_of_ranks(values: list[int]) -> None:
    times = np.array(values, dtype=np.float64)
    spearman = errors_of(times, times**3).spearman
    assert spearman is None if len(set(values)) == 1 else spearman == pytest.approx(1)


@pytest.mark.adr("0029-D1")
def test_rows_without_an_answer_are_counted_and_named(
    data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "errors.json"
    page = tmp_path / "page.md"
    assert validate(options(data, json=str(target), page=str(page), worst=2)) == 0
    printed = capsys.readouterr().out
    assert "no kernel for op sinh" in printed
    assert "no machine lists the device 'Abacus'" in printed
    assert "rows.csv:" in printed
    result = json.loads(target.read_text())
    total = result["categories"]["membound"]
    assert set(total) == {"rows", "unanswered", "mape", "median", "p90"}
    assert (total["rows"], total["unanswered"]) == (5, 2)
    assert total["mape"] < 10
    assert {(item["device"], item["op"], item["rows"]) for item in result["groups"]} == {
        ("A100-PCIe-40GB", "add", 3),
        ("A100-PCIe-40GB", "sinh", 1),
        ("Abacus", "add", 1),
    }
    keys = {"category", "device", "source", "op", "dtype", "rows", "unanswered", "mape", "median"}
    assert all(set(item) == {*keys, "p90", "bias", "spearman"} for item in result["groups"])
    assert "| membound | A100-PCIe-40GB | mine | add fp32 | 3 | 0 |" in page.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("A100-PCIe-40GB", "Abacus"), "rows.csv:2: no machine lists the device"),
        (TEXT.replace("time_us", "time"), "columns are missing: time_us"),
        (TEXT.splitlines(keepends=True)[0], "there is nothing to score"),
        (TEXT.replace("150.0", "nan"), "rows.csv:2: time_us must be a number above 0"),
        (TEXT.replace("8192", "0"), "rows.csv:3: column rows must be a whole number above 0"),
    ],
)
def test_wrong_data_ends_with_one_line(data: Path, text: str, message: str) -> None:
    data.write_text(text)
    done = CliRunner().invoke(app, ["validate", str(data)])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


@pytest.mark.adr("0071-D4")
@pytest.mark.parametrize(
    ("every", "message"),
    [
        ("0", "every must be at least 1"),
        ("gem=4", "knows no file or category 'gem': did you mean gemm"),
        ("gemm=few", "takes a number or NAME=NUMBER, but got 'gemm=few'"),
    ],
)
def test_a_wrong_sample_ends_with_one_line(data: Path, every: str, message: str) -> None:
    done = CliRunner().invoke(app, ["validate", str(data), "--every", every])
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.adr("0071-D4")
def test_a_page_says_what_made_it(
    data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    assert validate(options(data, page=str(page), every=("gemm=3",))) == 0
    assert "Made by `kernbench validate rows.csv --every gemm=3 --page`" in page.read_text()
    assert capsys.readouterr().out


def test_numbers_of_processes_that_cannot_be_are_refused(data: Path) -> None:
    with pytest.raises(UsageError, match="jobs must be at least 1"):
        answer_rows(read_rows([data]), 0)


@pytest.mark.campaign
def test_several_processes_give_the_same_answers(data: Path) -> None:
    data.write_text(TEXT + "".join(TEXT.splitlines(keepends=True)[1:4]) * 20)
    rows = read_rows([data])
    done: list[int] = []
    alone, shared = answer_rows(rows), answer_rows(rows, 2, done.append)
    assert alone == shared
    assert sum(done) == len(rows)


def test_baselines_stand_beside_the_model(data: Path) -> None:
    scored = [
        answer_row for answer_row in answer_rows(read_rows([data])) if answer_row.row.op == "add"
    ][:3]
    beside = roofline(scored, presets())
    assert beside is not None
    # 1555 GB/s of the vendor: what the rows took is longer.
    assert ideal_us(scored[0].row, presets()) == pytest.approx((0.0, 201326592 / 1555e3))
    assert beside.bias is not None
    assert beside.bias < 0
    result = measure(scored)
    assert result.mape is not None


WORKER = """
import threading, time
from multiprocessing import get_context
from kernbench.accuracy import score

def work(pipe):
    threading.Thread(target=score._end_with_parent, daemon=True).start()
    pipe.send(None)
    time.sleep(60)

if __name__ == "__main__":
    context = get_context("spawn")
    pipe, other = context.Pipe()
    child = context.Process(target=work, args=(other,))
    child.start()
    pipe.recv()
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_workers_end_when_the_process_that_asks_them_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "asks.py"
    path.write_text(WORKER)
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True) as asks:
        assert asks.stdout is not None
        worker = int(asks.stdout.readline())
        os.kill(worker, 0)
        asks.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker goes on")
