"""Warm judges that are shared: each judges one candidate at a time, and is used again."""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.judging.judge import Judge, Path
from kernbench.judging.verdict import Verdict


class BusyError(KernbenchError):
    """More candidates wait than a pool lets wait."""


class JudgePool:
    """Judges that share nothing but the queue before them; each is started when first used."""

    def __init__(
        self, workers: int | None = None, *, most_waiting: int | None = None, **options: Any
    ) -> None:
        """Make a pool of at most so many judges, one for each that asks at a time when missing.

        ``options`` are those of a :class:`Judge` that all candidates have.
        """
        self._turns = None if workers is None else threading.Semaphore(workers)
        self._most = None if workers is None or most_waiting is None else workers + most_waiting
        self._options = options
        self._judges: list[Judge] = []
        self._idle: queue.SimpleQueue[Judge] = queue.SimpleQueue()
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
            judge = self._taken()
            stack.callback(self._idle.put, judge)
            return judge(candidate, task, **{**self._options, **options})

    def _leave(self) -> None:
        with self._lock:
            self._asked -= 1

    def _taken(self) -> Judge:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            judge = Judge()
            with self._lock:
                self._judges.append(judge)
            return judge

    def close(self) -> None:
        """End the processes of all judges, and what they judge; one that is asked starts anew."""
        for judge in self._judges:
            judge.close()
