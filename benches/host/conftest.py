"""Collects what the benches measured, and prints it beside the goals as one table at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

# Installed beside pytest, kernbench would check every kernel.
os.environ["KERNBENCH_CHECK"] = "0"

Goal = Callable[..., None]


@dataclass(frozen=True)
class _Row:
    what: str
    measured: float
    goal: float
    unit: str
    at_least: bool

    def text(self) -> tuple[str, str, str, str]:
        reached = self.measured >= self.goal if self.at_least else self.measured <= self.goal
        bound = "at least" if self.at_least else "at most"
        shown, goal = (f"{value:,.{_digits(value)}f}{self.unit}" for value in self._both())
        return self.what, shown, f"{bound} {goal}", "yes" if reached else "no"

    def _both(self) -> tuple[float, float]:
        return self.measured, self.goal


def _digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


_ROWS: list[_Row] = []


@pytest.fixture
def goal() -> Goal:
    """Return the function that puts a measurement beside its goal, as a line and in the table."""

    def show(
        what: str, measured: float, goal: float, unit: str = "", at_least: bool = False
    ) -> None:
        row = _Row(what, measured, goal, unit, at_least)
        _ROWS.append(row)
        shown, bound = row.text()[1:3]
        print(f"\n  {what}: {shown} (goal: {bound})")

    return show


MEASURED = """
import json, time
{body}
with open("/proc/self/status") as status:
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
cost = {{"cpu_s": time.process_time(), "peak_mb": peak_kib / 1e3}}
print(json.dumps({{**cost, **globals().get("found", {{}})}}))
"""


def measured_in_a_process(body: str) -> dict[str, float]:
    """Return the CPU seconds and peak memory of a program, starting Python and imports included.

    What the program puts into a dict ``found`` comes on top.
    """
    script = MEASURED.format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print every goal, ready for README.md."""
    if not _ROWS:
        return
    rows = [("what", "measured", "goal", "reached"), *(row.text() for row in _ROWS)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    rows.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
    terminalreporter.section("speed")
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        terminalreporter.write_line(f"| {' | '.join(cells)} |")
