"""A pytest plugin that notes what became of each test, one line of JSON each, as it ends.

``--outcomes`` names the file. A test that was collected and has no end is noted as ``not run``, so
a run that is cut off leaves what it has shown.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import IO

import pytest

_FILE: pytest.StashKey[IO[str]] = pytest.StashKey()
_KINDS = re.compile(
    r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Failure|Exit|Interrupt)\b.*", re.MULTILINE
)
_OF_RANKS = re.compile(r"(?:Process|Thread) \d+ exited with|Exception in worker process")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="where the outcome of each test is written")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.stash[_FILE] = path.open("a")
        config.pluginmanager.register(_Notes(config.stash[_FILE]))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FILE in config.stash:
        config.stash[_FILE].close()


class _Notes:
    """Writes them."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._outcomes: dict[str, tuple[str, str]] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._write(item.nodeid, "not run", "the file's time was over")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", f"not collected: {str(report.longrepr)[-200:]}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        if report.failed:
            self._outcomes[test] = ("failed", _reason(report))
        elif report.skipped:
            self._outcomes[test] = ("skipped", _skip_reason(report))
        elif report.when == "call":
            self._outcomes.setdefault(test, ("passed", ""))
        if report.when == "teardown":
            self._write(test, *self._outcomes.pop(test))

    def _write(self, test: str, outcome: str, reason: str) -> None:
        self._file.write(json.dumps([test, outcome, reason]) + "\n")
        self._file.flush()


def _reason(report: pytest.TestReport) -> str:
    """Return the error in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    return re.sub(r"\s+", " ", reason_of(text))[:300]


def reason_of(text: str) -> str:
    """Return the line of an error's text that says most.

    >>> reason_of("RuntimeError: Thread 0 exited with exception:\\nKeyError: 3\\nThread 1")
    'KeyError: 3'
    """
    # A compilation error quotes the kernel first and says what is wrong last.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else "no message"
    if "CompilationError" in head and len(lines) > 1:
        return f"{head} {lines[-1]}"
    if _OF_RANKS.search(head):
        # The first rank's: others often only echo it.
        first = _OF_RANKS.split(text)[1]
        found = _KINDS.findall(first)
        return str(found[-1]) if found else head
    return head


def _skip_reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")[:200]
