"""``kernbench report``: the page of a run, and what is no run or no place for a page."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from kernbench.saved import load_run
from tests.cli.command_line import kernbench
from tests.page.runs import simulated, two_layers


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "kept.run"
    simulated(path, two_layers)
    return path


def test_a_run_becomes_a_page(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "run.html"
    done = kernbench("report", saved, "-o", page)
    assert done.exit_code == 0, done.output
    assert f"page: {page}" in done.output
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert f'"time_ps":{load_run(saved).log.end_ps}' in text
    again = kernbench("report", saved, saved, "--output", page)
    assert again.exit_code == 0, again.output
    assert '"difference_ns":0.0' in page.read_text()


def test_findings_are_tried_where_they_are_asked_for(tmp_path: Path) -> None:
    bench, kept, page = (tmp_path / name for name in ("bench.py", "kept.run", "run.html"))
    bench.write_text("def run(torch):\n    x = torch.randn(512, 512)\n    (x @ x).numpy()\n")
    assert kernbench("run", bench, "--save", kept).exit_code == 0
    done = kernbench("report", kept, "-o", page, "--findings")
    assert done.exit_code == 0, done.output
    data = json.loads(kernbench("findings", kept, "--json", "-").output)
    assert data["findings"]
    assert f'"findings":{json.dumps(data, separators=(",", ":"))},' in page.read_text()


def test_what_is_no_run_or_of_another_format_is_refused_and_the_page_stays(
    saved: Path, tmp_path: Path
) -> None:
    page = tmp_path / "run.html"
    page.write_text("the page before")
    (tmp_path / "text.run").write_text("hello")
    old = tmp_path / "old.run"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "run.json":
                data = json.dumps({**json.loads(data), "format": 0}).encode()
            target.writestr(name, data)
    (tmp_path / "cut.run").write_bytes(saved.read_bytes()[:1_000])
    for value, said in (
        ([tmp_path / "text.run"], "is no run saved with --save"),
        ([old], "in format 0"),
        ([tmp_path / "cut.run"], "is no run saved with --save"),
        ([tmp_path / "none.run"], "No such file"),
        ([saved, tmp_path / "none.run"], "No such file"),
    ):
        done = kernbench("report", *value, "-o", page)
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert "Traceback" not in done.output
    assert page.read_text() == "the page before"


def test_a_page_goes_where_it_can_be_written_and_never_over_its_run(
    saved: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.run"
    shutil.copy(saved, copy)
    blocked = tmp_path / "file"
    blocked.write_text("")
    for output, said in (
        (tmp_path, "is a folder"),
        (copy, "which this command reads"),
        (blocked / "run.html", "cannot be written"),
        ("/dev/full", "No space left"),
    ):
        done = kernbench("report", copy, "-o", output)
        assert done.exit_code != 0, output
        assert said in done.output
    load_run(copy)
    assert "--output" in kernbench("report", copy).output
