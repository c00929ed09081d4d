"""Runs with right checksums and wrong contents are read, or refused by the file's name."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import pytest

from tests.saved.damaging import commands, complaint, complaints, in_share
from tests.tiers import daily

SEEDS = range(40)


def test_a_right_run_is_read_by_every_command(kept: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        complaints = [complaint(command, kept) for command in commands(kept, kept, tmp_path)]
    # Its machine takes bytes for collectives, and Chakra has all of them.
    assert not any(complaints), complaints


@pytest.mark.adr("0234-D3")
@pytest.mark.parametrize("first", daily(10, of=SEEDS[::10]))
def test_damage_is_no_error_of_ours(kept: Path, tmp_path: Path, first: int) -> None:
    texts: list[str] = []
    with contextlib.chdir(tmp_path):
        for seed in range(first, first + 10):
            texts += complaints(kept, seed, tmp_path, partial(in_share, seed, 6))
    assert not texts, "\n".join(texts)
