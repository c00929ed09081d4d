"""How wide the report of a run is."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kernbench.cli.app import app
from tests.programs import PROGRAMS

NAME = "a_kernel_of_which_the_name_says_everything_there_is_to_say"


@pytest.mark.parametrize(("columns", "is_whole"), [(None, True), ("80", False)])
def test_names_are_whole_in_files_unless_a_width_is_given(
    columns: str | None, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    bench = PROGRAMS / "long_name.py"
    done = CliRunner().invoke(app, ["run", str(bench)])
    assert done.exit_code == 0, done.output
    assert (NAME in done.output) == is_whole
    assert "1 rank" in done.output
