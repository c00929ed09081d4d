"""What kernbench says of its own work, by ``logging``: machines, compiling, phases, files."""

from __future__ import annotations

import logging
import os
import sys
from time import perf_counter
from typing import TextIO

from kernbench.errors import UsageError, nearest

ROOT = "kernbench"
VARIABLE = "KERNBENCH_LOG"
LEVELS = ("debug", "info", "warning", "error")
_BEGUN_S = perf_counter()


class _StderrLogs(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the time: in a notebook it is the cell's."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_LogLines())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # an attribute there
        return sys.stderr


class _LogLines(logging.Formatter):
    """Real seconds since kernbench was imported: programs may see simulated clocks."""

    def format(self, record: logging.LogRecord) -> str:
        part = record.name.removeprefix(f"{ROOT}.")
        since_s = perf_counter() - _BEGUN_S
        return f"{since_s:8.3f} s  {record.levelname.lower():<7} {part}: {super().format(record)}"


def logger(part: str) -> logging.Logger:
    """Return the logger of a part of kernbench, below the one that :func:`show_logs` shows."""
    return logging.getLogger(f"{ROOT}.{part}")


def _root() -> logging.Logger:
    return logging.getLogger(ROOT)


def show_logs(level: str) -> None:
    """Show what kernbench logs from a level on, on stderr; in place of what was shown before.

    Raises:
        UsageError: There is no such level.
    """
    text = level.strip().lower()
    if text not in LEVELS:
        raise UsageError(f"log level {level!r}: {nearest(text, LEVELS)}")
    root = _root()
    for handler in [handler for handler in root.handlers if isinstance(handler, _StderrLogs)]:
        root.removeHandler(handler)
    root.addHandler(_StderrLogs())
    root.setLevel(text.upper())
    # A program that shows all loggers would show each line twice.
    root.propagate = False
    # One that configures its own disables all others, unless told not to.
    for name, found_logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == ROOT and isinstance(found_logger, logging.Logger):
            found_logger.disabled = False


def show_logs_asked_for() -> None:
    """Show what ``KERNBENCH_LOG`` asks for, unless something is shown already.

    Raises:
        UsageError: It names no level.
    """
    asked = os.environ.get(VARIABLE)
    if asked and not any(isinstance(handler, _StderrLogs) for handler in _root().handlers):
        try:
            show_logs(asked)
        except UsageError as error:
            raise UsageError(f"{VARIABLE}: {error}") from None
