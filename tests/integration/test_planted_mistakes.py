"""Each kind of mistake that ``--check`` claims to find, planted in a kernel that nobody wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench import errors
from tests.integration import planted_mistakes
from tests.integration.planted_mistakes import KINDS, missed
from tests.integration.random_kernels import Choose
from tests.tiers import daily


# A campaign over many more seeds: `make fuzz-mistakes`.
@pytest.mark.slow
@pytest.mark.parametrize("part", daily(0, of=range(8)))
def test_planted_mistakes_are_found_and_their_twins_are_silent(tmp_path: Path, part: int) -> None:
    for seed, name in enumerate(KINDS):
        if seed % 8 == part:
            assert missed(1000 + seed, name, tmp_path) == ""


def test_a_mistake_that_is_not_found_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = KINDS["stored_masked_lanes"]

    def without(choose: Choose) -> planted_mistakes.Mistake:
        mistake = plant(choose)
        return replace(mistake, buggy=mistake.correct)

    def in_the_twin(choose: Choose) -> planted_mistakes.Mistake:
        mistake = plant(choose)
        return replace(mistake, correct=mistake.buggy)

    def another(choose: Choose) -> planted_mistakes.Mistake:
        return replace(plant(choose), said=errors.DataRaceError)

    for changed, words in ((without, "is not in ''"), (in_the_twin, "the twin"), (another, "Race")):
        monkeypatch.setitem(KINDS, "stored_masked_lanes", changed)
        assert words in missed(3, "stored_masked_lanes", tmp_path)
