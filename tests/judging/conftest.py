"""A warm judge, and what judges texts by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernbench.judging import Judge, Verdict
from tests.judging.tricks import TASKS

Judged = Callable[..., Verdict]


@pytest.fixture(scope="package")
def judge() -> Iterator[Judge]:
    with Judge() as started:
        yield started


@pytest.fixture
def judged(judge: Judge, tmp_path: Path) -> Judged:
    """Return what judges a candidate's text against a task's text."""

    def call(candidate: str, task: str, **options: Any) -> Verdict:
        (tmp_path / "candidate.py").write_text(candidate)
        (tmp_path / "task.py").write_text(TASKS.get(task, task))
        options = {"times": False, "seed": 1, **options}
        return judge(tmp_path / "candidate.py", tmp_path / "task.py", **options)

    return call
