"""Kernels that nobody wrote give the numbers that numpy gives for the same source."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.integration import random_kernels
from tests.integration.numpy_language import run_programs
from tests.integration.random_kernels import disagreement, generate
from tests.tiers import daily


# A campaign over many more seeds: `make fuzz-kernels`.
@pytest.mark.slow
@pytest.mark.parametrize("first", daily(0, of=(0, 10, 20, 30)))
def test_random_kernels_give_the_numbers_of_numpy(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 10):
        kernel = generate(random.Random(seed).randrange)
        said = disagreement(kernel, tmp_path)
        assert not said, f"seed {seed}: {said}\n{kernel.source}"


def test_another_number_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = generate(lambda options: 0)
    assert disagreement(kernel, tmp_path) == ""

    def run(source: str, *value: Any, **named: Any) -> None:
        run_programs(source.replace("tl.load(x0", "1 + tl.load(x0"), *value, **named)

    monkeypatch.setattr(random_kernels, "run_programs", run)
    assert "differ" in disagreement(kernel, tmp_path)
