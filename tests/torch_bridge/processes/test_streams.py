"""A progress bar that the command draws stays in front of what a rank prints to."""

from __future__ import annotations

import io
import sys

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402
from rich.file_proxy import FileProxy  # noqa: E402

from kernbench.torch_bridge.front.globals import Switches, known_globals  # noqa: E402


def test_a_bar_stays_in_front_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = next(
        known_global for known_global in known_globals(Switches()) if known_global.name == "streams"
    )
    terminal, own = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    first = streams.get()
    bar: object = FileProxy(Console(file=terminal), terminal)
    monkeypatch.setattr(sys, "stdout", bar)
    assert streams.get() == first
    streams.put(first)
    assert sys.stdout is bar
    streams.put((own, sys.stderr))
    assert sys.stdout is own
