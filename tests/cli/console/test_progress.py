from __future__ import annotations

import io
import sys
import time

import pytest

from kernbench.cli.console import progress as module
from kernbench.cli.console.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(module, "_REFRESH_S", 0.01)


def run_for_a_moment(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress(lambda: "12.3 us simulated"):
        deadline = time.monotonic() + 5
        while not stderr.getvalue() and time.monotonic() < deadline and stderr.isatty():
            time.sleep(0.02)
        time.sleep(0.3 if stderr.isatty() else 0)
    return stderr.getvalue()


@pytest.mark.usefixtures("shown_at_once")
def test_a_long_run_on_a_terminal_shows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "12.3 us simulated" in run_for_a_moment(monkeypatch, Terminal())


@pytest.mark.usefixtures("shown_at_once")
def test_nothing_is_drawn_where_stderr_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_for_a_moment(monkeypatch, io.StringIO()) == ""


def test_a_short_run_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress(lambda: "12.3 us simulated"):
        pass
    assert stderr.getvalue() == ""
