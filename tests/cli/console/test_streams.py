"""Output that nobody reads to its end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.programs import PROGRAMS


def piped(command: str, folder: Path) -> tuple[str, str, int]:
    """Return what `head -1` saw of a command, its stderr, and its own status."""
    script = f"{sys.executable} -m kernbench {command} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout, done.stderr, done.returncode


@pytest.mark.adr("0110-D5")
def test_a_reader_that_goes_away_is_no_failure_and_loses_no_file(tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "loud.py", tmp_path)
    assert piped("run loud.py", tmp_path) == ("line 0\n", "", 0)
    assert not (tmp_path / "went_on").exists()
    command = "run loud.py --json r.json --log o.parquet --trace t.json"
    out, err, status = piped(command, tmp_path)
    assert (out, status) == ("line 0\n", 0)
    assert [line.split()[0] for line in err.splitlines()] == ["op", "timeline:"]
    assert (tmp_path / "went_on").exists()
    assert json.loads((tmp_path / "r.json").read_text())["ranks"]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 1


@pytest.mark.adr("0110-D5")
def test_commands_without_a_program_end_the_same_way(tmp_path: Path) -> None:
    # More than fits into a pipe.
    out, err, status = piped("collective show all_reduce --ranks 8 --steps 100000", tmp_path)
    assert out.startswith("all_reduce")
    assert (err, status) == ("", 0)
