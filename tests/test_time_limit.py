"""A test that hangs ends with a failure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.programs import PROGRAMS


@pytest.mark.campaign
def test_a_test_that_hangs_in_c_fails_by_name_and_the_others_go_on() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "1", "-o", "faulthandler_timeout=2"),
            str(PROGRAMS / "hanging_tests.py"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "hanging_tests.py::test_that_hangs" in done.stdout
