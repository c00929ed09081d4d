"""Programs of the shape of Triton's tutorials, host code and all, through ``kernbench script``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from kernbench.cli.app import app

HERE = Path(__file__).parent
PROGRAMS = sorted(path.name for path in HERE.glob("program_*.py"))

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the programs use PyTorch for their tensors"
)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("MPLBACKEND", "Agg")

    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as status:
            app(["script", *arguments])
        out, err = capsys.readouterr()
        assert not status.value.code, err
        return out

    return call


@needs_torch
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("default")  # PyTorch and the plotting libraries warn on their own
def test_a_program_runs_as_it_is(run: Callable[..., str], name: str) -> None:
    out = run(str(HERE / name))
    assert "all close" in out
    assert "On ahbm:" in out.split("all close", 1)[1], "the report comes last"
