"""The pytest plug-in, in sessions of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import kernbench
from kernbench import errors
from tests.forked import PYTEST, run_forked
from tests.programs import PROGRAMS


def session(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(PROGRAMS / "checked_tests.py", folder / "test_it.py")
    kept = {name: value for name, value in os.environ.items() if name != "KERNBENCH_CHECK"}
    command = ("pytest", "-p", "kernbench.pytest_plugin", "-rf", "--strict-markers")
    return run_forked(*command, imports=PYTEST, cwd=folder, env={**kept, **environment})


@pytest.mark.slow
@pytest.mark.adr("0021-D5")
def test_kernels_of_tests_are_checked_unless_the_test_says_otherwise(tmp_path: Path) -> None:
    done = session(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "kernbench: sanitizer on (KERNBENCH_CHECK=0 turns it off)" in done.stdout
    assert "6 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.adr("0021-D5")
def test_the_environment_has_the_last_word(tmp_path: Path) -> None:
    done = session(tmp_path, KERNBENCH_CHECK="0")
    assert "kernbench: sanitizer off" in done.stdout
    assert "4 failed, 2 passed" in done.stdout


@pytest.mark.slow
def test_a_mark_that_allows_what_there_is_not_is_refused(tmp_path: Path) -> None:
    source = 'import pytest\n@pytest.mark.kernbench_allow("masks")\ndef test_it(): pass\n'
    (tmp_path / "test_other.py").write_text(source)
    done = session(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "kernbench_allow of test_other.py::test_it: there is no 'masks' to allow" in done.stderr


def test_pytest_finds_it_where_kernbench_is_installed() -> None:
    """Under the module's own name, so that -p in this project's settings is the same plug-in."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    entries = project["project"]["entry-points"]["pytest11"]
    assert entries == {"kernbench.pytest_plugin": "kernbench.pytest_plugin"}
    assert import_module("kernbench.pytest_plugin").pytest_runtest_protocol


def test_a_variable_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_CHECK", "yes")
    with pytest.raises(errors.UsageError, match=r"KERNBENCH_CHECK must be 0, 1 or nan.*'yes'"):
        kernbench.RuntimeContext(ranks=1)
    kernbench.RuntimeContext(ranks=1, check=False)


@pytest.mark.parametrize(("value", "checks"), [("", False), ("0", False), ("1", True)])
def test_the_variable_decides_where_check_is_left_open(
    monkeypatch: pytest.MonkeyPatch, value: str, checks: bool
) -> None:
    monkeypatch.setenv("KERNBENCH_CHECK", value)
    assert (kernbench.RuntimeContext(ranks=1).run.sanitizer is not None) == checks
    assert kernbench.RuntimeContext(ranks=1, check=False).run.sanitizer is None
    assert kernbench.RuntimeContext(ranks=1, check=True).run.sanitizer is not None


@pytest.mark.slow
def test_times_of_tests_are_kept_and_compared(tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "timed_tests.py", tmp_path / "test_timed.py")
    kept = tmp_path / "kernbench-times" / "test_timed.json"

    def run(*options: str, **environment: str) -> tuple[int, str]:
        command = ("pytest", "-p", "kernbench.pytest_plugin", "-q", *options)
        done = run_forked(*command, imports=PYTEST, cwd=tmp_path, env={**os.environ, **environment})
        return done.returncode, done.stdout

    # Of one test, where the programs that the other starts show nothing more.
    status, out = run("-k", "test_kept")
    assert status == 1
    assert "no time is kept for test_kept once in" in out
    assert not kept.exists()
    assert run("--kernbench-update")[0] == 0
    assert sorted(json.loads(kept.read_text())) == [
        "test_bench_and_script[64]",
        "test_kept",
        "test_kept once",
    ]
    assert run("-k", "test_kept")[0] == 0
    status, out = run("-k", "test_kept", SIZE="8388608")
    assert status == 1
    assert "us are kept (+" in out
    assert ", allowed 0.00%): mul " in out
    kept.write_text("[]")
    status, out = run("-k", "test_kept")
    assert status == 1
    assert "holds no kept times" in out
