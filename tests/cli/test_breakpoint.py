"""``breakpoint()`` inside a rank: pdb through a pipe, as a user at a terminal would drive it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from kernbench.cli.console.progress import progress
from tests.programs import PROGRAMS

BENCH = str(PROGRAMS / "stopping_bench.py")


def debug(commands: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernbench", "run", BENCH, "--ranks", "2"],
        input=commands,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.adr("0051-D5")
def test_pdb_looks_into_a_rank_and_the_run_goes_on() -> None:
    done = debug("p rank, result\np x.tolist()\nn\nn\np result\nup\np rank\nc\n")
    assert done.returncode == 0, done.stderr
    assert "(1, 10)" in done.stdout
    assert "[3.0, 3.0, 3.0, 3.0]" in done.stdout, "a host read works at the prompt"
    assert "(Pdb) 11" in done.stdout
    for rank in range(2):
        assert f"rank {rank} ends with 6.0" in done.stdout
    assert done.stderr == ""


@pytest.mark.adr("0051-D5")
def test_leaving_pdb_ends_the_run_as_an_interrupt_does() -> None:
    done = debug("q\n")
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"
    assert "ends with" not in done.stdout


@pytest.mark.adr("0051-D6")
def test_the_progress_bar_is_gone_before_the_debugger_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[tuple[Any, int]] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: entered.append(("debugger", threading.active_count()))
    )
    mine = sys.breakpointhook
    before = threading.active_count()
    with progress(lambda: "working"):
        assert threading.active_count() == before + 1
        breakpoint()
        assert sys.breakpointhook is mine
    assert entered == [("debugger", before)]
    assert sys.breakpointhook is mine


def test_pythons_own_hook_stops_where_the_user_wrote_breakpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.setattr(
        "pdb.Pdb.set_trace", lambda self, frame: stopped.append(frame.f_code.co_name)
    )
    with progress(lambda: "working"):
        breakpoint()
    assert stopped == ["test_pythons_own_hook_stops_where_the_user_wrote_breakpoint"]
