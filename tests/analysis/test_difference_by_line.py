"""The lines that two runs differ by: they add up, and are found again where lines were added."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernbench import RuntimeContext
from kernbench.analysis import LineDifference, difference_by_line, print_difference_by_line
from kernbench.errors import UsageError
from kernbench.saved import SavedRun, load_run, save_run

BEFORE = """def run(torch):
    x = torch.zeros(512, 512)
    y = x @ x
    y.exp()
    y @ y
"""
AFTER = """# A comment.
def run(torch):
    x = torch.zeros(512, 512)
    y = x @ x
    for _ in range(3):
        y.exp()
    y @ y
"""


def kept(
    folder: Path, name: str, text: str, *, record_lines: bool = True, file: str = "program.py"
) -> SavedRun:
    (folder / name).mkdir()
    program = folder / name / file
    program.write_text(text)
    defined: dict[str, Any] = {}
    exec(compile(text, str(program), "exec"), defined)
    with RuntimeContext("ahbm:1", data=False, record_lines=record_lines) as torch:
        defined["run"](torch)
    path = folder / f"{name}.run"
    with path.open("wb") as out:
        save_run(out, torch.op_log, torch.machine, torch.report())
    return load_run(path)


def test_a_copy_under_another_name_with_a_changed_line_is_the_same_program(
    tmp_path: Path,
) -> None:
    changed = BEFORE.replace("512, 512", "1024, 1024")
    runs = [kept(tmp_path, "a", BEFORE), kept(tmp_path, "b", changed, file="wider.py")]
    difference = difference_by_line(runs[0], runs[1])
    assert {numbers(item) for item in difference} == {(number, number) for number in (2, 3, 4, 5)}
    assert {Path(item["file"]).name for item in difference} == {"wider.py"}


def test_lines_are_found_again_and_add_up(tmp_path: Path) -> None:
    runs = [kept(tmp_path, name, text) for name, text in (("a", BEFORE), ("b", AFTER))]
    difference = difference_by_line(runs[0], runs[1])
    ends_ns = [run.log.end_ps / 1000 for run in runs]
    for key, expected in zip(("before_ns", "after_ns"), ends_ns, strict=True):
        assert sum(item[key] for item in difference) == pytest.approx(expected)  # type: ignore[literal-required]
    assert sum(item["difference_ns"] for item in difference) == pytest.approx(
        ends_ns[1] - ends_ns[0]
    )
    by_source = {item["source"]: item for item in difference}
    assert numbers(by_source["x = torch.zeros(512, 512)"]) == (2, 3)
    assert numbers(by_source["y = x @ x"]) == (3, 4)
    assert numbers(by_source["y @ y"]) == (5, 7)
    # Its indentation is another one, and so it is another line.
    gone, new = sorted(
        (item for item in difference if item["source"] == "y.exp()"), key=lambda item: numbers(item)
    )[::-1]
    assert (numbers(gone), numbers(new)) == ((4, 0), (0, 6))
    assert (gone["launches_before"], new["launches_after"]) == (1, 3)
    out = io.StringIO()
    print_difference_by_line(difference, Console(file=out, width=110))
    assert "program.py:new -> 6" in out.getvalue()
    assert "0 -> 3   y.exp()" in out.getvalue()


def test_equal_runs_differ_by_no_line(tmp_path: Path) -> None:
    saved = kept(tmp_path, "a", BEFORE)
    difference = difference_by_line(saved, saved)
    assert all(item["line_before"] == item["line_after"] for item in difference)
    out = io.StringIO()
    print_difference_by_line(difference, Console(file=out, width=110))
    assert "no line has another share" in out.getvalue()


def test_runs_without_lines_are_refused(tmp_path: Path) -> None:
    saved = kept(tmp_path, "a", BEFORE, record_lines=False)
    with pytest.raises(UsageError, match="no record of the program's lines"):
        difference_by_line(saved, saved)


def numbers(line_difference: LineDifference) -> tuple[int, int]:
    return line_difference["line_before"], line_difference["line_after"]
