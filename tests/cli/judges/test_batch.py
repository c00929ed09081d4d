"""A folder of candidates, judged by the command; a second call judges what is new alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from kernbench.cli.judges import batch
from tests.cli.command_line import kernbench

pytest.importorskip("torch")

TASK = """
import torch

def reference(x):
    return torch.relu(x)

def inputs(size, seed):
    torch.manual_seed(seed)
    return (torch.randn(size["n"], device="cuda"),)

sizes = [{"n": 300}]
"""
RIGHT = "import torch\ndef solve(x):\n    return x.clamp(min=0)\n"
WRONG = "import torch\ndef solve(x):\n    return x.abs()  # <b>&\n"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Return the command, whose judges stay warm from one call to the next."""
    with monkeypatch.context() as patched:
        patched.setattr(batch, "end_judges", lambda: None)
        yield partial(kernbench, "judge")
    batch.end_judges()


class Elements(HTMLParser):
    """Counts the elements of a page, and keeps its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_data(self, data) -> None:
        self.text += data


def test_a_batch_goes_on_where_it_stopped(tmp_path: Path, judge: Callable[..., Result]) -> None:
    folder = tmp_path / "relu"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "right.py").write_text(RIGHT)
    page, result = tmp_path / "page.html", tmp_path / "verdicts.json"
    options = ("--batch", tmp_path, "--workers", "1", "--json", result)
    first = judge(*options)
    assert first.exit_code in (0, 3), first.output
    (kept,) = (tmp_path / "verdicts" / "points").glob("*.json")
    before = kept.stat().st_mtime_ns
    (folder / "wrong.py").write_text(WRONG)
    second = judge(*options, "--page", page)
    assert second.exit_code == 4, second.output
    assert kept.stat().st_mtime_ns == before
    right, wrong = json.loads(result.read_text())
    assert right["outcome"].startswith("right")
    assert wrong["outcome"] == "wrong"
    assert pq.read_table(tmp_path / "verdicts.parquet")["outcome"].to_pylist() == [
        right["outcome"],
        "wrong",
    ]
    shown = Elements(page.read_text())
    assert shown.count["details"] == 2
    assert "b" not in shown.count
    assert "return x.abs()  # <b>&" in shown.text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--batch", "missing"), "is no folder"),
        (("--batch", "."), "has no candidates"),
        (("a.py", "--batch", "."), "name no candidates"),
        (("a.py", "--serve"), "name no candidates"),
        (("--batch", ".", "--engine", "slurm"), "no engine 'slurm'"),
        ((), "name candidates and a task"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, monkeypatch, arguments, says) -> None:
    monkeypatch.chdir(tmp_path)
    done = kernbench("judge", *arguments)
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.campaign
def test_two_commands_in_one_folder_share_the_work(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    for index in range(4):
        (tmp_path / f"c{index}.py").write_text(WRONG if index % 2 else RIGHT)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    command = [sys.executable, "-m", "kernbench", "judge", "--batch", str(tmp_path)]
    command += ["--against", str(tmp_path / "task.py"), "--workers", "1", "--json"]
    results = [tmp_path / "first.json", tmp_path / "second.json"]
    running = [subprocess.Popen([*command, str(result)]) for result in results]
    assert [process.wait(300) for process in running] == [4, 4]
    first, second = (json.loads(result.read_text()) for result in results)
    assert [verdict["outcome"] for verdict in first] == [verdict["outcome"] for verdict in second]
    assert [verdict["outcome"] == "wrong" for verdict in first] == [False, True] * 2
    assert len(list((tmp_path / "verdicts" / "points").glob("*.json"))) == 4


def test_a_candidate_that_is_no_text_is_one_of_several_verdicts(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "wrong.py").write_text("def solve(x:\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    files = [tmp_path / name for name in ("binary.py", "wrong.py")]
    result = kernbench("judge", *files, "--against", tmp_path / "task.py", "--json", "-")
    assert result.exit_code == 6, result.output
    binary, wrong = json.loads(result.stdout)
    assert [binary["outcome"], wrong["outcome"]] == ["cannot say", "wrong"]
    assert "byte 0xff in position 0" in binary["why"]
