"""The lines that are maintained stay within a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import line_budget


@pytest.mark.adr("0236-D3")
def test_the_lines_of_each_folder_are_within_its_budget() -> None:
    most = line_budget.budget()
    assert {"src/kernbench", "src/kernbench/accuracy", "validation"} == set(most)
    counted = {folder: line_budget.lines_of(line_budget.ROOT / folder) for folder in most}
    assert not line_budget.verdicts(most, counted)
    assert most["src/kernbench/accuracy"] <= 3000


@pytest.mark.adr("0236-D3")
def test_one_line_too_many_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text("a = 1\n\nb = 2\n")
    (tmp_path / "two.py").write_text("c = 3\n")
    (tmp_path / "notes.md").write_text("no Python\n")
    lines = line_budget.lines_of(tmp_path)
    assert lines == 4
    assert line_budget.verdicts({"here": 4}, {"here": lines}) == []
    (said,) = line_budget.verdicts({"here": 3}, {"here": lines})
    assert said.startswith("here has 4 lines, 1 more than its budget of 3: ")
    assert "python tools/line_budget.py --write and say in the change what" in said
