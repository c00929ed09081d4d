"""Small files that stand for gigabytes, or for work without end, take neither memory nor time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.saved.bombs import BOMBS, MOST_MB, read_apart
from tests.saved.damaging import parts_of
from tests.tiers import daily

_WHY = [0]
"""Of the commands, the first."""


@pytest.mark.adr("0234-D2")
@pytest.mark.parametrize(
    "name",
    daily(
        "rows of waits",
        of=("rows of waits", "ranks", "a_parameter_of_many", "many_labels", "zeros", "a_pipe"),
    ),
)
def test_a_bomb_is_refused_without_its_memory(kept: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "bomb.run"
    BOMBS[name](run, parts_of(kept))
    result = read_apart(run, kept, _WHY, 120)
    assert not result["found"], result
    # More than a whole process, and less than a tenth of what it stands for.
    assert result["mb"] < MOST_MB, result
