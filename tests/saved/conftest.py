"""A run that tests damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import kernbench


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a run of four ranks, with all parts that a run may have."""
    path = tmp_path_factory.mktemp("kept") / "kept.run"
    done = kernbench("run", "--no-data", "--save", path, "tp_mlp")
    assert done.exit_code == 0, done.output
    return path
