"""``kernbench validate`` finds out first that it cannot write what it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.cli.app import app

ROWS = "device,op,dtype,m,n,k,time_us,source\nA100,gemm,fp16,64,64,64,9.9,mine\n"


@pytest.mark.parametrize("option", ["json", "page", "plot"])
def test_an_output_that_has_no_place_is_refused_before_rows_are_scored(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(ROWS)
    with pytest.raises(SystemExit) as status:
        app(["validate", str(rows), f"--{option}", str(tmp_path)])
    out, err = capsys.readouterr()
    assert (status.value.code, out) == (2, "")
    assert f"--{option} {tmp_path} is a folder; name a file in it" in err
