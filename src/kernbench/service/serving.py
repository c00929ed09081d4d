"""What a service runs on: its folder and its pool of processes, for as long as it serves."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernbench.service.judges import JudgePool
from kernbench.service.requests import Workspace
from kernbench.service.tools import Tools


@contextlib.contextmanager
def serving(
    folder: Path | None, *, workers: int, timeout_s: float, waiting: int = 64, **judging: Any
) -> Iterator[Tools]:
    """Yield the tools of a service; without a folder, what it keeps is gone at the end."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernbench-")))
        judges = JudgePool(workers, most_waiting=waiting, **judging)
        stack.callback(judges.close)
        yield Tools(Workspace(folder, timeout_s=timeout_s), judges)
