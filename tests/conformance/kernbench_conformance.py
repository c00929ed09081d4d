"""A pytest plugin that runs somebody else's Triton tests on kernbench.

Every test gets a run of its own, with CPU tensors of PyTorch as arguments. What became of each
test is written as JSON to the file named by ``--outcomes``: by test id, ``passed``, ``skipped`` or
``failed``, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.hardware import load_machine

_OPEN: pytest.StashKey[ExitStack] = pytest.StashKey()
_OUTCOMES: dict[str, tuple[str, str]] = {}
_MACHINE = load_machine("ahbm", 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="where the outcome of each test is written")


def pytest_configure(config: pytest.Config) -> None:
    # Some files ask Triton for its target while they are imported.
    stack = config.stash[_OPEN] = ExitStack()
    stack.enter_context(kernbench.RuntimeContext(_MACHINE, ranks=1))


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_OPEN].close()


@pytest.fixture(autouse=True)
def _kernbench_run() -> Iterator[Any]:
    with kernbench.RuntimeContext(_MACHINE, ranks=1) as run:
        yield run


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _OUTCOMES[report.nodeid] = ("failed", _reason(report))
    elif report.skipped:
        _OUTCOMES[report.nodeid] = ("skipped", _skip_reason(report))
    elif report.when == "call":
        _OUTCOMES.setdefault(report.nodeid, ("passed", ""))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _OUTCOMES[report.nodeid] = ("failed", f"not collected: {str(report.longrepr)[-200:]}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--outcomes")
    if path is not None and not hasattr(session.config, "workerinput"):
        path.write_text(json.dumps(_OUTCOMES, indent=0))


def _reason(report: pytest.TestReport) -> str:
    """Return the error in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    # A compilation error quotes the kernel first and says what is wrong last.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else "no message"
    if "CompilationError" in head and len(lines) > 1:
        head = f"{head} {lines[-1]}"
    return re.sub(r"\s+", " ", head)[:300]


def _skip_reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")[:200]
