from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernbench.triton_backend import activate
from tests.triton_backend.recording import RecordingLauncher


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Triton's disk cache, with nothing in it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.fixture
def launcher(empty_cache: Path) -> Iterator[RecordingLauncher]:
    launcher = RecordingLauncher()
    with activate(launcher):
        yield launcher
