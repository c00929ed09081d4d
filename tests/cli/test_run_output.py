"""How wide the report of a run is."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench.cli.app import app

NAME = "a_kernel_of_which_the_name_says_everything_there_is_to_say"
BENCH = f"""
import triton
import triton.language as tl

@triton.jit
def {NAME}(x):
    tl.store(x + tl.arange(0, 16), 1.0)

def run(torch):
    {NAME}[(1,)](torch.empty(16, device="ahbm"))
"""


@pytest.mark.parametrize(("columns", "is_whole"), [(None, True), ("80", False)])
def test_names_are_whole_in_files_unless_a_width_is_given(
    columns: str | None, is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    bench = tmp_path / "bench.py"
    bench.write_text(BENCH)
    done = CliRunner().invoke(app, ["run", str(bench)])
    assert done.exit_code == 0, done.output
    assert (NAME in done.output) == is_whole
    assert "1 rank" in done.output
