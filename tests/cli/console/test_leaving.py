"""How the command ends after a PyTorch program."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.programs import PROGRAMS


def output_of(before: str) -> tuple[list[str], int]:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "leaving.py"), before],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return done.stdout.split("\n")[:-1], done.returncode


def test_output_is_written_and_nothing_is_taken_apart() -> None:
    assert output_of("") == (["written", "registered"], 3)


def test_output_that_nobody_reads_any_more_is_no_failure() -> None:
    assert output_of("sys.stdout = None") == ([], 3)


@pytest.mark.parametrize(
    "before",
    [
        "threading.Thread(target=time.sleep, args=(0.1,)).start()",
        "sys.setprofile(lambda *event: None)",
        "sys.settrace(lambda *event: None)",
    ],
)
def test_who_has_something_to_wait_for_ends_as_usual(before: str) -> None:
    said, status = output_of(before)
    assert said[:3] == ["written", "goes on", "registered"]
    assert status == 0
