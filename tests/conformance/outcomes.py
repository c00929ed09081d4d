"""A pytest plugin that notes what became of each test, one line of JSON each, as it ends.

``--outcomes`` names the file. A test that was collected and has no end is noted as ``not run``, so
a run that is cut off leaves what it has shown. With ``--go-on`` a later one does the rest: a test
that was under way is a failure then. ``--share`` runs a part, always the same.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import IO

import pytest

_FILE: pytest.StashKey[IO[str]] = pytest.StashKey()
_KINDS = re.compile(
    r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Failure|Exit|Interrupt)\b.*", re.MULTILINE
)
UNENDED = "the program ended, or was ended, during the test"
_OF_TRACED = re.compile(r"^\s*Explanation: .*: got (\w+\(.*\))\s*$", re.MULTILINE)
"""How Dynamo quotes the error of a call that it traced."""
_OF_RANKS = re.compile(r"(?:Process|Thread) \d+ exited with|Exception in worker process")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="where the outcome of each test is written")
    parser.addoption("--go-on", action="store_true", help="run those that are not noted there")
    parser.addoption("--share", type=float, default=1, help="of the tests, by hash of their names")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        goes_on = config.getoption("--go-on")
        done = ended_in(path)[0] if goes_on else frozenset()
        config.stash[_FILE] = path.open("a")
        share = config.getoption("--share")
        config.pluginmanager.register(_Notes(config.stash[_FILE], share, done, goes_on))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FILE in config.stash:
        config.stash[_FILE].close()


def ended_in(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the tests that have an end, or began, in a file of outcomes; and those left to run."""
    lines = path.read_text().splitlines() if path.exists() else ()
    noted = [json.loads(line) for line in lines]
    ended = frozenset(test for test, outcome, _ in noted if outcome != "not run")
    return ended, frozenset(test for test, _, _ in noted) - ended


def is_in(test: str, share: float) -> bool:
    """Return whether a test belongs to a share of all tests, by its name alone.

    >>> names = [f"test_{n}" for n in range(10000)]
    >>> 900 < sum(is_in(name, 0.1) for name in names) < 1100
    True
    >>> all(is_in(name, 0.3) for name in names if is_in(name, 0.1))
    True
    """
    name = test.rpartition("/")[2]
    return zlib.crc32(name.encode()) < share * 2**32


class _Notes:
    """Writes them."""

    def __init__(
        self, file: IO[str], share: float, done: frozenset[str], notes_beginnings: bool
    ) -> None:
        self._file = file
        self._share = share
        self._done = done
        self._notes_beginnings = notes_beginnings
        self._outcomes: dict[str, tuple[str, str]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            item
            for item in items
            if is_in(item.nodeid, self._share) and item.nodeid not in self._done
        ]
        for item in items:
            self._write(item.nodeid, "not run", "the file's time was over")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._notes_beginnings:
            self._write(nodeid, "failed", UNENDED)

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
    >>> reason_of("TorchRuntimeError: of a fake call\\n  Explanation: f(x): got KeyError('3')\\n")
    "TorchRuntimeError: of a fake call: KeyError('3')"
    """
    # A compilation error quotes the kernel first and says what is wrong last.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else "no message"
    if "CompilationError" in head and len(lines) > 1:
        return f"{head} {lines[-1]}"
    cause = _OF_TRACED.search(text)
    if cause is not None:
        return f"{head}: {cause[1]}"
    if _OF_RANKS.search(head):
        # The first rank's: others often only echo it.
        first = _OF_RANKS.split(text)[1]
        matches = _KINDS.findall(first)
        return str(matches[-1]) if matches else head
    return head


def _skip_reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")[:200]
