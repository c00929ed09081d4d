from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernbench.cli.app import app
from tests.programs import PROGRAMS

Sweep = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the bench ``swept.py``."""
    shutil.copy(PROGRAMS / "swept.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNBENCH_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    """Run the command in this process: its status, and what it prints."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            app(["sweep", *arguments])
        out, err = capsys.readouterr()
        return int(status.value.code or 0), out, err

    return call
