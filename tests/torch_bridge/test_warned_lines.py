"""Warnings name the line that a program without kernbench would have them name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import NoDataError  # noqa: E402
from tests.torch_bridge.running import real, simulated  # noqa: E402

PROGRAM = "warned_lines.py"


def test_warnings_of_operations_name_the_lines_that_call_them(tmp_path: Path) -> None:
    real(PROGRAM, tmp_path / "real", "cpu")
    simulated(PROGRAM, tmp_path / "simulated", "cuda")
    expected, result = (json.loads((tmp_path / name).read_text()) for name in ("real", "simulated"))
    assert {file for file, _, _ in expected} == {PROGRAM}
    # Some are said once in a process, which may have said them already.
    assert len(result) > 1
    assert all(item in expected for item in result)


def test_what_a_run_without_data_cannot_know_is_said_in_one_line() -> None:
    with pytest.raises(NoDataError) as raised:
        simulated("without_data_sparse.py", data=False)
    assert "the shape of its result depends on data" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300
