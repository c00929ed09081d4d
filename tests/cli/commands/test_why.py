"""``--save`` and ``kernbench why``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kernbench.cli.app import app

BENCH = """
def run(torch):
    a = torch.randn(256, 256)
    for _ in range(3):
        a = a @ a
    torch.ahbm.synchronize()
"""


def kernbench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    (folder / "bench.py").write_text(BENCH)
    done = kernbench("run", folder / "bench.py", "--save", folder / "kept.run")
    assert done.exit_code == 0, done.output
    assert f"kernbench why {folder / 'kept.run'}" in done.output
    return folder / "kept.run"


def test_why_adds_up_and_its_path_has_no_gap(saved: Path) -> None:
    done = kernbench("why", saved, "--json", "-")
    assert done.exit_code == 0, done.output
    why = json.loads(done.output)
    assert sum(each["time_ns"] for each in why["spent"]) == pytest.approx(why["time_ns"])
    path = why["critical_path"]
    assert [each["start_ns"] for each in path] == [0, *(each["end_ns"] for each in path[:-1])]
    assert path[-1]["end_ns"] == why["time_ns"]
    assert sum(each["kind"] == "kernel" for each in path) == 3


def test_the_tables_sum_up_or_show_every_segment(saved: Path) -> None:
    done = kernbench("why", saved)
    assert done.exit_code == 0, done.output
    for said in ("where the time of a rank went", "gemm.py:", "critical path: "):
        assert said in done.output
    whole = kernbench("why", saved, "--path")
    assert whole.output.count("matmul") > done.output.count("matmul")


def test_a_file_gets_the_json_and_the_screen_the_tables(saved: Path, tmp_path: Path) -> None:
    done = kernbench("why", saved, "--json", tmp_path / "why.json")
    assert "where the time" in done.output
    assert json.loads((tmp_path / "why.json").read_text())["ranks"] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["none.run"], "No such file"),
        (["bench.py"], "is no run saved with --save"),
        (["kept.run", "--json", "no/such/folder/x.json"], "no/such/folder"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_explained_is_one_line(saved: Path, given: list[str], said: str) -> None:
    folder = saved.parent
    paths = [folder / each if "." in each and "/" not in each else each for each in given]
    done = kernbench("why", *paths)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "Traceback" not in done.output


def test_a_run_that_cannot_be_saved_is_not_begun(saved: Path) -> None:
    bench = saved.parent / "bench.py"
    done = kernbench("run", bench, "--save", saved.parent)
    assert (done.exit_code, "is a folder" in done.output) == (2, True)
    done = kernbench("run", bench, "--save", "-")
    assert (done.exit_code, "--save takes a file" in done.output) == (2, True)
