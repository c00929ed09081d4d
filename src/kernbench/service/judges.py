"""A pool of warm judges, each of which judges one candidate at a time; one queue waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.judging import Judge


class BusyError(KernbenchError):
    """More candidates wait than the service lets wait."""


class JudgePool:
    """Judges that share nothing but the queue before them."""

    def __init__(self, workers: int, *, most_waiting: int = 64, **options: Any) -> None:
        """Make them, to be started when first used; ``options`` are those of a :class:`Judge`."""
        self._judges = [Judge() for _ in range(workers)]
        self._free: queue.SimpleQueue[Judge] = queue.SimpleQueue()
        for each in self._judges:
            self._free.put(each)
        self._most, self._options = workers + most_waiting, options
        self._lock = threading.Lock()
        self._asked = 0

    def judge(self, candidate: Path, task: Path, machines: Sequence[str]) -> dict[str, Any]:
        """Return the verdict as JSON has it.

        Raises:
            BusyError: Too many wait.
            KernbenchError: The task is none, or there is no such machine.
        """
        with self._lock:
            if self._asked >= self._most:
                raise BusyError(f"{self._asked} candidates wait already; ask again later")
            self._asked += 1
        try:
            judge = self._free.get()
            try:
                return judge(candidate, task, machines=machines, **self._options).to_dict()
            finally:
                self._free.put(judge)
        finally:
            with self._lock:
                self._asked -= 1

    def close(self) -> None:
        """End their processes, and what they judge."""
        for each in self._judges:
            each.close()
