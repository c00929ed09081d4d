"""How wide the report of a run is."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_program_that_refuses_its_arguments_has_no_report(
    nprocs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "refuses.py"
    program.write_text("import sys\nimport torch\n\nsys.exit('usage: refuses.py SIZE')\n")
    done = CliRunner().invoke(app, ["run", f"--nproc-per-node={nprocs}", str(program)])
    assert done.exit_code == 1
    assert "usage: refuses.py SIZE" in capfd.readouterr().err + done.output
    assert "simulated" not in done.output
