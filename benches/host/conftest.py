"""Collects what the benches measured; at the end prints it beside the goals, and writes it down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from results import Row, lines, page
from speed_check import describe_commit

# Installed beside pytest, kernbench would check every kernel.
os.environ["KERNBENCH_CHECK"] = "0"
# As where it is installed: programs in processes of their own would compile every module anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Goal = Callable[..., None]


_ROWS: list[Row] = []
_BEGUN_AT = describe_commit()
"""The commit that is measured: at the end of a long run another one may be checked out."""


@pytest.fixture
def goal() -> Goal:
    """Return the function that puts a measurement beside its goal, as a line and in the table."""

    def show(
        what: str, measured: float, goal: float, unit: str = "", at_least: bool = False
    ) -> None:
        row = Row(what, measured, goal, unit, at_least)
        _ROWS.append(row)
        shown, bound = row.text()[1:3]
        print(f"\n  {what}: {shown} (goal: {bound})")

    return show


MEASURED = """
import json, resource
{body}
with open("/proc/self/status") as status:
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
of_all = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in of_all)
cost = {{"cpu_s": cpu_s, "peak_mb": peak_kib / 1e3}}
print(json.dumps({{**cost, **globals().get("found", {{}})}}))
"""


def measured_in_a_process(body: str) -> dict[str, float]:
    """Return the CPU seconds and peak memory of a program, starting Python and imports included.

    Processes that it has started and that have ended count, too, in seconds. What the program puts
    into a dict ``found`` comes on top.
    """
    script = MEASURED.format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--page", type=Path, help="write the table of the run to this file")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print every goal, and write the page of a whole run in which nothing failed."""
    if not _ROWS:
        return
    terminalreporter.section("speed")
    for line in lines(_ROWS):
        terminalreporter.write_line(line)
    path: Path | None = config.getoption("--page")
    if path is None:
        return
    why = _not_written(terminalreporter.stats, exitstatus)
    if why is not None:
        terminalreporter.write_line(f"{path} is left as it was: {why}")
        return
    left_out = [
        f"`{report.nodeid.rpartition('/')[2]}`: {report.longrepr[2].removeprefix('Skipped: ')}"
        for report in terminalreporter.stats.get("skipped", [])
    ]
    path.write_text(page(_ROWS, left_out, _BEGUN_AT))


def _not_written(stats: dict[str, list[object]], exitstatus: int) -> str | None:
    """Return what keeps a run off the page, if anything does."""
    if exitstatus:
        return "a bench failed, or the run was interrupted"
    if stats.get("deselected"):
        return "not every bench ran"
    if describe_commit() != _BEGUN_AT:
        return "files changed during the run"
    return None
