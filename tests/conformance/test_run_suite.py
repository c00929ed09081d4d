"""The script that runs Triton's own tests, on a stand-in for Triton's repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.report import Outcome
from tests.conformance.run_suite import (
    copy_suite,
    count_passed,
    raised,
    read_allowed,
    read_outcomes,
    write_allowed,
)
from tests.conformance.suites import DISTRIBUTED, TRITON, run_as_programs
from tests.programs import PROGRAMS


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def triton(tmp_path: Path) -> Path:
    repo = tmp_path / "triton"
    tests = repo / "python" / "test" / "unit" / "language"
    tests.mkdir(parents=True)
    (repo / "python" / "triton").mkdir()
    (repo / "python" / "triton" / "__init__.py").write_text("raise ImportError('not built')\n")
    (repo / "python" / "test" / "conftest.py").write_text("")
    (tests / "test_core.py").write_text("def test_one(): pass\n")
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "first")
    return repo


@pytest.mark.adr("0041-D1")
def test_tests_are_copied_away_from_the_sources(triton: Path, tmp_path: Path) -> None:
    first = git(triton, "rev-parse", "HEAD")
    (triton / "python" / "test" / "unit" / "language" / "test_core.py").write_text("later\n")
    target = tmp_path / "copy"
    target.mkdir()
    assert copy_suite(TRITON, triton, first, TRITON.under, target) == first
    copied = target / "python" / "test" / "unit" / "language" / "test_core.py"
    assert copied.read_text() == "def test_one(): pass\n"
    assert not (target / "python" / "triton").exists()


def test_a_clone_without_the_commit_is_refused_in_words(triton: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no commit 0123456; give the path of a clone"):
        copy_suite(TRITON, triton, "0123456", TRITON.under, tmp_path)


@pytest.mark.adr("0041-D3")
def test_the_list_only_grows(tmp_path: Path) -> None:
    before = {"test_core.py::test_a": 3, "test_core.py::test_gone": 1}
    outcomes = {
        "test_core.py::test_a[0]": Outcome("passed", ""),
        "test_core.py::test_a[1]": Outcome("failed", "no"),
        "test_core.py::test_b": Outcome("passed", ""),
    }
    after = raised(before, count_passed(outcomes))
    assert after == {**before, "test_core.py::test_b": 1}
    write_allowed(tmp_path / "allowed.txt", after)
    assert read_allowed(tmp_path / "allowed.txt") == after


@pytest.mark.adr("0101-D2")
@pytest.mark.slow
def test_files_of_pytorchs_form_are_run_as_programs_with_devices(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "suite"
    (folder / "tensor").mkdir(parents=True)
    shutil.copy(PROGRAMS / "dtensor_tests.py", folder / "tensor" / "test_two.py")
    outcomes = tmp_path / "outcomes.jsonl"
    run_as_programs(DISTRIBUTED, folder, outcomes, [], 100)
    found = read_outcomes(outcomes)
    assert {test.rpartition("::")[2]: each.outcome for test, each in found.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
    }
    reason = next(each.reason for each in found.values() if each.outcome == "failed")
    assert reason == "ValueError: of rank 1"
