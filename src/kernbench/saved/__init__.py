"""Runs on disk: everything that a run's log knows, written whole and read back as that log.

What reads and writes files imports pyarrow, and is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kernbench.inputs import source_texts
from kernbench.saved.action import ON_HANDLES, OPERANDS, STREAMS, Action, Actor

if TYPE_CHECKING:
    from kernbench.saved.actions import Actions
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
    "source_texts",
]

_HOME = {
    "Actions": "actions",
    "SavedRun": "reading",
    "at_other_times": "allocations",
    "load_run": "reading",
    "save_run": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
