"""The script that runs Triton's own tests, on a stand-in for Triton's repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.outcomes import UNENDED
from tests.conformance.report import Outcome
from tests.conformance.run_suite import (
    copy_folder,
    copy_suite,
    count_passed,
    main,
    raised,
    read_allowed,
    read_outcomes,
    write_allowed,
)
from tests.conformance.suites import (
    DISTRIBUTED,
    INDUCTOR,
    TRITON,
    end_of,
    run_as_programs,
    run_compiled,
)
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


@pytest.mark.campaign
@pytest.mark.adr("0101-D2")
@pytest.mark.slow
def test_files_of_pytorchs_form_are_run_as_programs_with_devices(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "suite"
    (folder / "tensor").mkdir(parents=True)
    shutil.copy(PROGRAMS / "dtensor_tests.py", folder / "tensor" / "test_two.py")
    outcomes = tmp_path / "outcomes.jsonl"
    run_as_programs(DISTRIBUTED, folder, outcomes, [], 100)
    result = read_outcomes(outcomes)
    assert {test.rpartition("::")[2]: value.outcome for test, value in result.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
    }
    reason = next(item.reason for item in result.values() if item.outcome == "failed")
    assert reason == "ValueError: of rank 1"


@pytest.mark.adr("0041-D5")
def test_a_folder_without_the_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no test_torchinductor\.py; give the folder"):
        copy_folder(INDUCTOR, tmp_path, tmp_path / "copy")


@pytest.mark.parametrize("share", ["0", "1.5", "-1"])
def test_a_share_that_is_none_is_refused(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["folder", "--suite", "inductor", "--share", share])
    assert "--share must be above 0 and at most 1" in capsys.readouterr().err


@pytest.mark.adr("0041-D6")
def test_a_program_that_notes_nothing_for_long_is_ended(tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes.jsonl"
    stuck = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    assert end_of(stuck, outcomes, 0.2) == "ended after 0.2 s in one test"
    assert stuck.poll() is not None
    done = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])
    assert end_of(done, outcomes, 60) == "status 5"


@pytest.mark.campaign
@pytest.mark.adr("0041-D5")
@pytest.mark.adr("0041-D6")
@pytest.mark.slow
def test_tests_are_compiled_and_go_on_after_one_that_ends_the_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    value, folder = tmp_path / "given", tmp_path / "copy"
    value.mkdir()
    folder.mkdir()
    shutil.copy(PROGRAMS / "inductor_tests.py", value / "test_torchinductor.py")
    assert "SHA-256" in copy_folder(INDUCTOR, value, folder)
    outcomes = tmp_path / "outcomes.jsonl"
    run_compiled(INDUCTOR, folder, outcomes, [], 60)
    result = read_outcomes(outcomes)
    assert {test.rpartition("::")[2]: item.outcome for test, item in result.items()} == {
        "test_compiled": "passed",
        "test_ends": "failed",
        "test_fails": "failed",
        "test_last": "passed",
    }
    reasons = {test.rpartition("::")[2]: item.reason for test, item in result.items()}
    assert reasons["test_ends"] == UNENDED
    assert "KeyError" in reasons["test_fails"]
