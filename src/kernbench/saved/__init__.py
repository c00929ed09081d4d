"""Runs on disk: everything that a run's log knows, written whole and read back as that log.

What reads and writes files is imported when it is first asked for: runs that nobody saves need none
of pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.on_demand import asked_for
from kernbench.saved.action import ON_HANDLES, OPERANDS, STREAMS, Action, Actions, Actor

if TYPE_CHECKING:
    from kernbench.saved.allocations import at_other_times
    from kernbench.saved.reading import SavedRun, load_run
    from kernbench.saved.writing import save_run

__all__ = [
    "ON_HANDLES",
    "OPERANDS",
    "STREAMS",
    "Action",
    "Actions",
    "Actor",
    "SavedRun",
    "at_other_times",
    "load_run",
    "save_run",
]

_HOMES = {
    "SavedRun": "reading",
    "at_other_times": "allocations",
    "load_run": "reading",
    "save_run": "writing",
}


def __getattr__(name: str) -> Any:
    """Import what has to do with files."""
    return asked_for(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
