"""A warm judge that is shared: by so many candidates at a time."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.judging.judge import Judge, Path
from kernbench.judging.verdict import Verdict


class BusyError(KernbenchError):
    """More candidates wait than a pool lets wait."""


class JudgePool:
    """How many candidates one warm process judges at a time, and how many wait."""

    def __init__(
        self, workers: int | None = None, *, most_waiting: int | None = None, **options: Any
    ) -> None:
        """Judge at most so many at a time, as many as are asked for when missing.

        ``options`` are those of a :class:`Judge` that all candidates have.
        """
        self._turns = None if workers is None else threading.Semaphore(workers)
        self._most = None if workers is None or most_waiting is None else workers + most_waiting
        self._options = options
        self._judge = Judge()
        self._lock = threading.Lock()
        self._asked = 0

    def judge(self, candidate: Path, task: Path, **options: Any) -> Verdict:
        """Return the verdict on a candidate.

        Raises:
            BusyError: Too many wait.
            KernbenchError: The task is none, or there is no such machine.
        """
        with ExitStack() as stack:
            with self._lock:
                if self._most is not None and self._asked >= self._most:
                    raise BusyError(f"{self._asked} candidates wait already; ask again later")
                self._asked += 1
            stack.callback(self._leave)
            if self._turns is not None:
                stack.enter_context(self._turns)
            return self._judge(candidate, task, **{**self._options, **options})

    def _leave(self) -> None:
        with self._lock:
            self._asked -= 1

    def close(self) -> None:
        """End the warm process, and what it judges; a pool that is asked again starts anew."""
        self._judge.close()
