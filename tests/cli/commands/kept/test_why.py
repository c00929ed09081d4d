"""``--save``, ``kernbench why`` and ``kernbench diff``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kernbench.report import format_ns
from tests.cli.command_line import PRODUCTS, kernbench


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    (folder / "bench.py").write_text(PRODUCTS)
    done = kernbench("run", folder / "bench.py", "--save", folder / "kept.run")
    assert done.exit_code == 0, done.output
    assert f"kernbench why {folder / 'kept.run'}" in done.output
    return folder / "kept.run"


def test_why_adds_up_and_its_path_has_no_gap(saved: Path) -> None:
    done = kernbench("why", saved, "--json", "-")
    assert done.exit_code == 0, done.output
    why = json.loads(done.output)
    assert sum(item["time_ns"] for item in why["spent"]) == pytest.approx(why["time_ns"])
    path = why["critical_path"]
    assert [item["start_ns"] for item in path] == [0, *(item["end_ns"] for item in path[:-1])]
    assert path[-1]["end_ns"] == why["time_ns"]
    assert sum(item["kind"] == "kernel" for item in path) == 3


def test_the_tables_sum_up_or_show_every_segment(saved: Path) -> None:
    done = kernbench("why", saved)
    assert done.exit_code == 0, done.output
    for said in ("where the time of a rank went", "gemm.py:", "critical path: "):
        assert said in done.output
    whole = kernbench("why", saved, "--path")
    assert whole.output.count("matmul") > done.output.count("matmul")


@pytest.mark.parametrize("width", [30, 50, 80])
def test_numbers_are_whole_at_any_width(
    saved: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    why = json.loads(kernbench("why", saved, "--json", "-").output)
    output = kernbench("why", saved).output
    assert max(map(len, output.splitlines())) <= max(width, 50)
    kernels = [item for item in why["critical_path"] if item["kind"] == "kernel"]
    time_ns = sum(kernel["end_ns"] - kernel["start_ns"] for kernel in kernels)
    assert f"{format_ns(time_ns)} " in output
    assert ("times" in output) == (width >= 80)


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
    paths = [folder / item if "." in item and "/" not in item else item for item in given]
    done = kernbench("why", *paths)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "Traceback" not in done.output


def test_a_timeline_is_made_of_a_saved_run(saved: Path, tmp_path: Path) -> None:
    traced = tmp_path / "trace.json.gz"
    done = kernbench("trace", saved, traced)
    assert done.exit_code == 0, done.output
    events = json.loads(gzip.decompress(traced.read_bytes()))["traceEvents"]
    assert {"critical path", "rank 0", "SIP 0"} <= {
        event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    done = kernbench("trace", saved, saved)
    assert (done.exit_code, "which this command reads" in done.output) == (2, True)


def test_a_run_that_cannot_be_saved_is_not_begun(saved: Path) -> None:
    bench = saved.parent / "bench.py"
    done = kernbench("run", bench, "--save", saved.parent)
    assert (done.exit_code, "is a folder" in done.output) == (2, True)
    done = kernbench("run", bench, "--save", "-")
    assert (done.exit_code, "--save takes a file" in done.output) == (2, True)


def test_diff_says_what_made_a_run_longer_and_fails_where_that_is_too_much(
    saved: Path, tmp_path: Path
) -> None:
    longer = tmp_path / "longer.run"
    kernbench("run", saved.parent / "bench.py", "-p", "times=6", "--save", longer)
    done = kernbench("diff", saved, longer)
    assert done.exit_code == 0, done.output
    assert "launches of a rank 3 -> 6" in done.output
    assert kernbench("diff", saved, longer, "--fail-over", "5%").exit_code == 1
    assert kernbench("diff", saved, longer, "--fail-over", "500%").exit_code == 0
    assert kernbench("diff", longer, saved, "--fail-over", "0%").exit_code == 0
    data = json.loads(kernbench("diff", saved, longer, "--json", "-").output)
    parts = sum(item["difference_ns"] for item in data["contributions"])
    assert parts == pytest.approx(data["after_ns"] - data["before_ns"])


@pytest.mark.parametrize("share", ["5", "-5%", "much%", "nan%"])
def test_a_share_is_a_percentage(saved: Path, share: str) -> None:
    done = kernbench("diff", saved, saved, "--fail-over", share)
    assert (done.exit_code, "takes a percentage such as 5%" in done.output) == (2, True)


def test_lines_of_a_kernel_are_shown_from_a_run_and_behind_a_report(saved: Path) -> None:
    done = kernbench("why", saved, "--lines", "matmul")
    assert (done.exit_code, "tl.dot(" in done.output) == (0, True), done.output
    lines = json.loads(kernbench("why", saved, "--lines", "matmul", "--json", "-").output)
    assert lines["launches"] == 3
    done = kernbench("why", saved, "--lines", "nothing")
    assert (done.exit_code, "no kernel 'nothing'; it launched matmul" in done.output) == (2, True)
    done = kernbench("run", saved.parent / "bench.py", "--lines")
    assert (done.exit_code, "tl.dot(" in done.output) == (0, True), done.output


def test_on_a_measured_machine_the_published_errors_stand_below(
    saved: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "h100.run"
    done = kernbench("run", saved.parent / "bench.py", "--machine", "h100-sxm", "--save", kept)
    (line,) = (line for line in done.output.splitlines() if line.startswith("published errors"))
    assert line in kernbench("why", kept).output
    assert json.loads(kernbench("why", kept, "--json", "-").output)["accuracy"]
    assert "published errors" not in kernbench("why", saved).output
